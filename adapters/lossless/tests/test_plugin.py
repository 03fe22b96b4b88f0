import pytest

from hexkv.adapters.lossless.plugin import ZstdSettings, hexkv_adapters
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.kit.cases import each
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import NoSettings, OpenContext
from hexkv.ports import ConfigError

CONTEXT = OpenContext(ManualClock())


def test_it_offers_two_serdes():
    zstd, rans = hexkv_adapters()
    assert {(spec.kind, spec.name) for spec in (zstd, rans)} == {
        ("serde", "zstd"),
        ("serde", "rans"),
    }
    assert isinstance(zstd.open(ZstdSettings(), CONTEXT), ZstdSerde)
    assert rans.open(NoSettings(), CONTEXT).name == "rans-planes/1"


def test_without_kernels_only_rans_is_missing():
    zstd, rans = hexkv_adapters()
    assert "hexkv.kernels" not in zstd.requires
    assert "hexkv.kernels" in rans.requires
    assert rans.hint == "pip install hexkv-lossless[rans]"


def test_it_opens_by_its_name_in_a_configuration():
    assert isinstance(discover().open("serde", "zstd", {"level": 3}, CONTEXT), ZstdSerde)


@each("level", [23, -1])
def test_a_level_that_there_is_not_is_an_error(level):
    with pytest.raises(ConfigError, match=r"level: .*between 0 and 22"):
        discover().open("serde", "zstd", {"level": level}, CONTEXT)
