"""numpy and pydantic are optional: only who uses them loads them."""

import subprocess
import sys
from pathlib import Path

import penstock

SOURCE = str(Path(next(iter(penstock.__path__))).parent)

PLAIN = """
import sys
sys.path.insert(0, {source!r})
import pkgutil, importlib
import penstock.codec
for module in pkgutil.iter_modules(penstock.codec.__path__):
    if module.name not in ("numpy_", "pydantic_"):
        importlib.import_module("penstock.codec." + module.name)
from penstock.codec import schema, pickle_
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.formats import Codec
from penstock.errors import InvalidItem

def predict(xs: list[dict[str, float]]) -> list[bytes]: ...
found = schema.signature(predict, batched=True)
schema.accepts(found.item), schema.offers(found.result), schema.json_schema(found.item)
for codec in (Codec.JSON, Codec.MSGPACK, Codec.PICKLE):
    decoder = ItemDecoder(found.item, validate=True)
    encoder = ItemEncoder(found.item, validate=True)
    assert decoder.decode(codec, encoder.encode(codec, {{"a": 1.5}})) == {{"a": 1.5}}
try:
    ItemEncoder(dict).encode(Codec.JSON, [None, float("nan"), object()])
except EncodeFailed:
    pass
try:
    ItemDecoder(float).decode(Codec.NPY, b"")
except InvalidItem:
    pass
loaded = [name for name in ("numpy", "pydantic") if name in sys.modules]
assert not loaded, loaded
"""


def test_json_messagepack_and_pickle_load_neither_numpy_nor_pydantic():
    done = subprocess.run(
        [sys.executable, "-c", PLAIN.format(source=SOURCE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
