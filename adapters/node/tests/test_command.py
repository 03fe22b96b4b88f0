"""What `hexkv node` refuses before it takes memory."""

from hexkv.contracts.kit.cases import each
from hexkv.plugins.__main__ import main


@each("extra", [[], ["--take-over"]])
def test_what_a_node_cannot_be_is_said_in_one_line(tmp_path, capsys, extra):
    """What is wrong in the configuration comes before what is wrong with the socket."""
    right, wrong = tmp_path / "right.yaml", tmp_path / "hexkv.yaml"
    right.write_text("pool: {bytes: 1 MiB}\ntiers: [{store: memory}]\n")
    wrong.write_text("node: /run/hexkv/node.sock\n")
    nowhere = ["--socket", "/nowhere/s"]
    for options, said in (
        (["--config", str(wrong), *nowhere], f"node (from {wrong}:1): a node has no node of its"),
        (["--config", str(tmp_path / "none.yaml"), *nowhere], "none.yaml: cannot be read"),
        (["--config", str(right), *nowhere, "--mode", "999"], "'999' is no mode"),
        (["--config", str(right), *nowhere, "--lease", "none"], "none"),
        (["--config", str(right), *nowhere], "cannot listen at /nowhere/s"),
        (["--config", str(right), "--socket", "s"], "--socket: must be an absolute path"),
    ):
        assert main(["node", *options, *extra]) == 2
        out, err = capsys.readouterr()
        assert said in err
        assert (out, err.count("\n")) == ("", 1)
