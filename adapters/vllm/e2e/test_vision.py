"""What is in a prompt and is no word: images, whose placeholders are alike, and embeddings."""

import pytest

from engines.vllm.vllm_engines import Engine, agree, offloading, prompt
from engines.vllm.vllm_frames import damage, frames, poison, sound

pytestmark = pytest.mark.thorough

CHUNK = 64
IMAGE = 4096
"""The token that stands for an image until vLLM makes 67 of it."""

SHOWN = 67
BESIDE = 100
"""Words before an image, and after it. So chunks begin and end within images."""

TURNS = {"max_num_batched_tokens": 128, "enable_prompt_embeds": True}
"""Everything but the shortest prompts is computed in parts."""

COUNTED = {"mm_processor_cache_gb": 0, "enable_prefix_caching": False}
"""Without its two caches vLLM names images by their number in the process."""


def seen(name, *images):
    """A prompt: words with *images* in between, each known by its seed."""
    words = prompt(name, BESIDE)
    for place, _ in enumerate(images):
        words += [IMAGE, *prompt(f"{name} {place}", BESIDE)]
    return words, images


def whole(images):
    """Tokens in full chunks of a prompt with so many *images*."""
    return (BESIDE + images * (SHOWN + BESIDE)) // CHUNK * CHUNK


@pytest.fixture(scope="session")
def model(built):
    return built("tiny_vision")


@pytest.fixture(scope="module")
def reference(model, tmp_path_factory):
    with Engine(model, tmp_path_factory.mktemp("reference") / "log", **TURNS) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(reference):
    """What a prompt gets without a connector, by itself."""
    known = {}

    def answer(words, images=(), embedded=False):
        asked = (tuple(words), images, embedded)
        if asked not in known:
            [known[asked]] = reference.generate(words, images=[images], embedded=embedded)
        return known[asked]

    return answer


@pytest.fixture(scope="module")
def same(alone):
    """``same(engine, *prompts)`` runs them at once: as without a connector; what was cached."""

    def cached(engine, *prompts):
        answers = engine.generate(
            *[words for words, _ in prompts], images=[images for _, images in prompts]
        )
        assert agree(answers, [alone(*one) for one in prompts])
        engine.flush()  # whoever asks next is to find all of it
        return [answer.cached for answer in answers]

    return cached


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


def config(root, **extra):
    """The disk alone: nothing hides what lies on it."""
    disk = {"store": "disk", "settings": {"root": str(root)}}
    return {"chunk": {"size": CHUNK}, "pool": {"bytes": "128MiB"}, "tiers": [disk], **extra}


@pytest.fixture(scope="module")
def engine(start, root):
    return start(config(root), **TURNS)


@pytest.fixture(scope="module")
def stored(engine, root):
    """``stored(name, image)``: the files of a prompt with one image, which *engine* stores."""

    def store(name, image):
        before = frames(root)
        words, images = seen(name, image)
        engine.generate(words, images=[images])
        engine.flush()
        grown = frames(root) - before
        assert len(grown) == whole(1) // CHUNK
        return grown

    return store


def test_the_same_text_with_the_same_image_is_loaded(engine, same):
    for cached in (0, whole(1)):
        assert same(engine, seen("same", 1)) == [cached]


def test_the_same_text_with_another_image_is_computed(engine, same, alone):
    assert alone(*seen("other", 1)).tokens != alone(*seen("other", 2)).tokens  # it matters which
    for cached in (0, whole(1)):
        assert same(engine, seen("other", 1)) == [cached]
        assert same(engine, seen("other", 2)) == [cached]


def test_images_in_another_order_are_other_images(engine, same, alone):
    assert alone(*seen("order", 1, 2)).tokens != alone(*seen("order", 2, 1)).tokens
    for cached in (0, whole(2)):
        assert same(engine, seen("order", 1, 2)) == [cached]
        assert same(engine, seen("order", 2, 1)) == [cached]


def test_questions_about_one_image_share_it_and_no_more(engine, same):
    words, images = seen("question", 3)
    same(engine, (words + prompt("what", 90), images))
    assert same(engine, (words + prompt("why", 90), images)) == [whole(1)]


def test_different_images_at_once_are_computed_and_loaded_at_once(engine, same):
    prompts = [seen("crowd", *images) for images in ((1,), (2,), (3,), (1, 2), (2, 1), (1, 1))]
    for once in (False, True):
        known = [whole(len(images)) if once else 0 for _, images in prompts]
        assert same(engine, *prompts) == known


def test_embeddings_in_place_of_words_are_never_loaded_nor_stored(engine, same, alone, root):
    engine.flush()
    before = frames(root)
    for seed in (1, 2, 1):
        embeddings = (seed, 200)
        answers = engine.generate(embeddings, embedded=True)
        assert agree(answers, [alone(embeddings, embedded=True)])
        assert answers[0].cached == 0
    engine.flush()
    assert frames(root) == before
    # vLLM itself writes zeros where embeddings have no tokens.
    assert same(engine, ([0] * 200, ())) == [0]


def test_a_fresh_process_loads_the_right_images(start, stored, same, alone, root):
    """And computes anew, image and all, what is damaged. Layer by layer is left to words."""
    stored("right", 1)
    broken = stored("damaged", 1)
    for file in broken:
        damage(file)
    for file in stored("poisoned", 1):
        poison(file)
    with start(config(root, loading="layerwise"), **TURNS) as fresh:
        # Not the first image of this process, as it was of the other.
        assert same(fresh, seen("right", 2)) == [0]
        assert same(fresh, seen("right", 1)) == [whole(1)]
        # The control: what is loaded is what the tokens depend on.
        words, images = seen("poisoned", 1)
        [answer] = fresh.generate(words, images=[images])
        assert answer.cached == whole(1)
        assert answer.tokens != alone(words, images).tokens
        same(fresh, seen("damaged", 1))
        assert all(map(sound, broken))
        assert same(fresh, seen("damaged", 1)) == [whole(1)]


def test_images_that_vllm_only_counts_are_never_loaded_nor_stored(start, same, root):
    engines = [start(config(root), **TURNS, **COUNTED) for _ in range(2)]
    for image, engine in enumerate(engines):
        assert same(engine, seen("counted", image)) == [0]
    words = seen("words")
    assert [same(engine, words) for engine in engines] == [[0], [CHUNK]]


def test_behind_vllms_offloading_counted_images_are_refused(model, tmp_path):
    """There vLLM names blocks by them."""
    transfer = offloading({"tiers": [{"store": "memory"}]})
    with pytest.raises(AssertionError, match="vLLM numbers images"):
        Engine(model, tmp_path / "log", transfer=transfer, **COUNTED)
