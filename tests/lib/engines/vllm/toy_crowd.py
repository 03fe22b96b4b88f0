"""Two toys of vLLM that prefill and decode, on a node, and all that can go wrong with them."""

import random

from vllm.v1.request import RequestStatus

from engines.vllm.vllm_toy import alone


class Crowd:
    """A router's requests to a prefiller and a decoder that may be replaced at any time.

    Args:
        begin: makes an engine that prefills.
        seed: of whatever happens.
        decode: makes one that decodes; by default another one of the same.
        told: what some requests to a prefiller say under ``hexkv``.
    """

    def __init__(self, begin, seed, *, decode=None, told=None):
        self._begin, self._begin_decode = begin, decode or begin
        self._told = told
        self.dice = random.Random(seed)
        self.prefill, self.decode = begin(), self._begin_decode()
        self._at_decode = {}
        self._at_prefill = {}
        self.answered = self.given_up = self.whole = 0

    def ask(self, name):
        """A request as a router sends it, sometimes to both at once, sometimes to one alone."""
        dice = self.dice
        shared = random.Random(dice.randrange(4)).choices(range(1000), k=dice.choice([0, 40, 96]))
        words = shared + dice.choices(range(1000), k=dice.randrange(1, 150))
        way = dice.choices(["first", "at once", "alone"], [8, 3, 1])[0]
        if way != "alone":
            params = {"do_remote_decode": True, "do_remote_prefill": False}
            if self._told is not None and dice.random() < 0.7:
                params["hexkv"] = self._told
            self.prefill.add(name, words, count=1, params=params)
            self._at_prefill[name] = words, way == "first"
        if way != "first":
            self._send_on(name, words, {"do_remote_prefill": way == "at once"})

    def _send_on(self, name, words, params):
        self.decode.add(name, words, params=params)
        self._at_decode[name] = words, params

    def step(self):
        """A step of each engine; then whoever is done is sent on, or answered."""
        for toy in (self.prefill, self.decode):
            if toy.scheduler.has_unfinished_requests():
                toy._rest()
        for name, (words, sends_on) in list(self._at_prefill.items()):
            if self.prefill.requests[name].is_finished():
                del self._at_prefill[name]
                assert self.prefill.answers()[name] == alone(words, 1), name
                if sends_on:
                    told = self.prefill.told.get(name, {})
                    self._send_on(name, words, self.dice.choice([told, told, {}]))
        for name, (words, _) in list(self._at_decode.items()):
            if self.decode.requests[name].is_finished():
                del self._at_decode[name]
                assert self.decode.answers()[name] == alone(words, 4), name
                self.whole += self.decode.cached[name] == len(words) - 1
                self.answered += 1

    def give_up(self):
        """A client hangs up."""
        for toy, under_way in (
            (self.prefill, self._at_prefill),
            (self.decode, self._at_decode),
        ):
            if under_way and self.dice.random() < 0.5:
                name = self.dice.choice(list(under_way))
                toy.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                del under_way[name]
                self.given_up += 1

    def kill_prefill(self):
        """It dies, and another one comes; its requests are decoded by who computes all of them."""
        self.prefill.close()
        self.prefill = self._begin()
        under_way, self._at_prefill = self._at_prefill, {}
        for name, (words, sends_on) in under_way.items():
            if sends_on:
                self._send_on(name, words, {})

    def kill_decode(self):
        """It dies, and another one gets its requests, with the params that they had."""
        self.decode.close()
        self.decode = self._begin_decode()
        under_way, self._at_decode = self._at_decode, {}
        for name, (words, params) in under_way.items():
            self._send_on(name, words, params)

    def kill_proxy(self):
        """It dies: its connections break, so the servers give up all of its requests."""
        for toy, under_way in ((self.prefill, self._at_prefill), (self.decode, self._at_decode)):
            for name in under_way:
                toy.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                self.given_up += 1
            under_way.clear()

    def finish(self):
        """Until nothing is under way."""
        while self._at_prefill or self._at_decode:
            self.step()
