"""What `hexkv node` refuses before it takes memory."""

from hexkv.plugins.__main__ import main


def test_what_a_node_cannot_be_is_said_in_one_line(tmp_path, capsys):
    config, socket = tmp_path / "hexkv.yaml", tmp_path / "node.sock"
    config.write_text("node: /run/hexkv/node.sock\n")
    for options, said in (
        (["--config", str(config)], f"node (from {config}:1): a node has no node of its own"),
        (["--config", str(tmp_path / "none.yaml")], "none.yaml: cannot be read"),
        (["--config", str(config), "--mode", "999"], "'999' is no mode"),
        (["--config", str(config), "--socket", "/nowhere/s"], "cannot listen at /nowhere/s"),
    ):
        assert main(["node", "--socket", str(socket), *options]) == 1
        out, err = capsys.readouterr()
        assert said in err
        assert (out, err.count("\n")) == ("", 1)
    assert not socket.exists()
