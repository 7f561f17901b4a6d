"""Names of torch's dtypes, for modules that do not import torch."""

FLOATS = ("bfloat16", "float16", "float32", "float64")
COMPLEX = ("complex32", "complex64", "complex128")
DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *FLOATS,
    *COMPLEX,
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
