"""``python phase.py SETTINGS``: one SGLang engine in a process, told what to do line by line.

SETTINGS is a JSON object, the arguments of ``sglang.Engine``. Each line on stdin is a JSON object
with the prompts to run at once, or with a file of weights to take; the answers are a line on
stdout. Everything else that is printed goes to stderr. The end of stdin ends the engine.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang import Engine

Json = dict[str, object]

_PATIENCE = 60.0


async def _one(engine: Engine, prompt: Sequence[int], tokens: int) -> Json:
    wanted = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    began, first, last = time.perf_counter(), 0.0, {}
    stream = await engine.async_generate(
        input_ids=list(prompt), sampling_params=wanted, stream=True
    )
    async for part in stream:
        if part["output_ids"] and not first:
            first = time.perf_counter() - began
        last = part
    said = last["meta_info"]
    details = said.get("cached_tokens_details") or {}
    return {
        "tokens": list(last["output_ids"]),
        "cached": said["cached_tokens"],
        "host": details.get("host", 0),
        "storage": details.get("storage", 0),
        "first_token_seconds": first,
        "began": began,
    }


async def _all(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> list[Json]:
    return list(await asyncio.gather(*(_one(engine, prompt, tokens) for prompt in prompts)))


def _flushed(engine: Engine) -> bool:
    """Forget what SGLang's own memory holds; it refuses as long as anything is under way."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        said: object = engine.flush_cache()
        if getattr(said, "success", said):
            return True
        time.sleep(0.05)
    return False


def _updated(engine: Engine, file: str) -> bool:
    """Take the tensors of *file* in place of those of these names, without naming a version."""
    from safetensors.torch import load_file

    assert engine.begin_weight_update()[0]
    success, _ = engine.update_weights_from_tensor(list(load_file(file).items()))
    return bool(success and engine.end_weight_update()[0])


def _die_with_parent() -> None:
    """However it ends: a stopped engine does not notice that nobody asks any more."""
    kill_when_parent_dies = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(kill_when_parent_dies, signal.SIGKILL)


def main() -> None:
    _die_with_parent()
    # What SGLang's processes print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import sglang

    engine = sglang.Engine(**json.loads(sys.argv[1]))
    print(json.dumps({"pid": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if task.get("flush"):
            given: object = _flushed(engine)
        elif task.get("update"):
            given = _updated(engine, task["update"])
        else:
            given = engine.loop.run_until_complete(_all(engine, task["prompts"], task["tokens"]))
        print(json.dumps(given), file=answers, flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
