"""The element types of KV, by the names that torch and NumPy use."""

from __future__ import annotations

from enum import StrEnum

from hexkv.ports.errors import InvalidRequest


class DType(StrEnum):
    """Element types of KV, by their usual names. ``uint8`` also stands for opaque bytes."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3 = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    UINT8 = "uint8"

    @classmethod
    def of(cls, dtype: object) -> DType:
        """Return the type of a name, ``"bfloat16"``, or of a dtype of torch or NumPy.

        Raises:
            InvalidRequest: there is none.
        """
        name = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")
        try:
            return cls(name)
        except ValueError:
            raise InvalidRequest(f"no dtype {name!r:.40}: one of {', '.join(cls)}") from None

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return {"float32": 4, "float16": 2, "bfloat16": 2}.get(self, 1)
