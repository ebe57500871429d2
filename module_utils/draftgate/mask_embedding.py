"""``mask_embedding.pt``: a row that replaces the mask's in the target's embedding (MiMo's drafters ship one).

It is what torch.save writes: a zip with a pickle in it. A pickle is a program, so it is never run here: its
opcodes are read, those of an allow-list are followed on plain values, and anything else refuses the file.
Format: https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import os
import pickletools
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .config_fields import is_integer
from .errors import InputError
from .untrusted import open_file

FILE_NAME = "mask_embedding.pt"
_DOING = "reading the drafter's mask_embedding.pt"
_MOST_MEMBERS = 64
_LONGEST_PICKLE = 64 << 10  # that of one tensor has 200 bytes
_LARGEST = 4 << 20  # a row of the widest target has 64 KiB; zipfile keeps the whole directory in memory

_STORAGES = {"BFloat16Storage": 2, "HalfStorage": 2, "FloatStorage": 4, "LongStorage": 8}
_TENSOR, _PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
_DICT = "collections OrderedDict"


@dataclass(frozen=True)
class MaskEmbedding:
    """What the file holds.

    :param shape: of the tensor; engines flatten it.
    :param mask_token_id: the id that the file says it belongs to, where it says one.
    :param is_zero: every byte of it is zero.
    """

    shape: Tuple[int, ...]
    storage: str
    mask_token_id: Optional[int]
    is_zero: bool

    @property
    def elements(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


class _Global(NamedTuple):
    name: str


class _Storage(NamedTuple):
    kind: str
    key: str


class _TensorOf(NamedTuple):
    storage: _Storage
    offset: int
    shape: Tuple[int, ...]


def read_mask_embedding(drafter_dir: str) -> Optional[MaskEmbedding]:
    """The file beside a drafter's weights; None where there is none.

    :raises InputError: DG218, it is no zip of torch.save, holds an opcode or a name outside of the
        allow-list, no tensor of numbers, or fewer bytes than the tensor has.
    """
    path = os.path.join(drafter_dir, FILE_NAME)
    if not os.path.lexists(path):
        return None
    try:
        with open_file(path) as handle:
            if os.fstat(handle.fileno()).st_size > _LARGEST:
                raise _broken(f"it has more than {_LARGEST} bytes")
            with zipfile.ZipFile(handle) as archive:
                return _embedding(archive)
    except OSError as exc:
        raise _broken(f"it cannot be read: {exc.strerror}") from exc
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as exc:
        raise _broken(f"it is no zip as torch.save writes it ({exc})") from exc


def _embedding(archive: zipfile.ZipFile) -> MaskEmbedding:
    names = archive.namelist()
    pickles = [name for name in names if name.endswith("/data.pkl")]
    if len(names) > _MOST_MEMBERS or len(pickles) != 1:
        raise _broken(f"it has {len(names)} members, {len(pickles)} of them a data.pkl")
    value = _follow(_member(archive, pickles[0], _LONGEST_PICKLE))
    fields = value if isinstance(value, dict) else {"embedding": value}
    tensor, token_id = fields.get("embedding"), fields.get("mask_token_id")
    if not isinstance(tensor, _TensorOf):
        raise _broken("it holds no tensor, or a dict without the tensor 'embedding'")
    data = _data(archive, pickles[0], tensor)
    number = token_id if is_integer(token_id) else None
    return MaskEmbedding(tensor.shape, tensor.storage.kind, number, not any(data))


def _data(archive: zipfile.ZipFile, pickle: str, tensor: _TensorOf) -> bytes:
    """The tensor's bytes. Strides are not followed: a row is contiguous."""
    size = _STORAGES[tensor.storage.kind]
    elements = MaskEmbedding(tensor.shape, "", None, False).elements
    name = f"{pickle[: -len('data.pkl')]}data/{tensor.storage.key}"
    if name not in archive.namelist():
        raise _broken(f"its tensor's data, {name!r}, is missing")
    stored = _member(archive, name, _LARGEST)
    data = stored[tensor.offset * size : (tensor.offset + elements) * size]
    if len(data) != elements * size:
        raise _broken(f"a tensor of {list(tensor.shape)} has {len(data)} bytes, not {elements * size}")
    return data


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """One member; its size is checked while it is read, whatever the directory of the zip says."""
    with archive.open(name) as handle:
        data = handle.read(most + 1)
    if len(data) > most:
        raise _broken(f"its member {name!r} has more than {most} bytes")
    return data


def _follow(pickle: bytes) -> Any:
    """The value that the pickle describes, with tensors as :class:`_TensorOf`; nothing is called."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(pickle):
            if opcode.name == "STOP":
                return machine.stack[-1]
            step = _STEPS.get(opcode.name)
            if step is None:
                raise _broken(f"its pickle has the opcode {opcode.name}, which no tensor needs")
            step(machine, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as exc:
        raise _broken(f"its pickle makes no sense ({type(exc).__name__})") from exc
    raise _broken("its pickle has no end")


class _Machine:
    """A pickle's stack, marks and memo, over plain values."""

    def __init__(self) -> None:
        self.stack: List[Any] = []
        self.marks: List[int] = []
        self.memo: Dict[int, Any] = {}

    def pop(self, count: int) -> List[Any]:
        if len(self.stack) < count:
            raise IndexError(count)
        start = len(self.stack) - count
        taken, self.stack[start:] = self.stack[start:], []
        return taken

    def pop_mark(self) -> List[Any]:
        return self.pop(len(self.stack) - self.marks.pop())

    def load_global(self, name: str) -> None:
        module, _, attribute = name.partition(" ")
        is_storage = module == "torch" and attribute in _STORAGES
        if not is_storage and name not in (_TENSOR, _PARAMETER, _DICT):
            raise _broken(f"its pickle names {name!r}, which no tensor needs")
        self.stack.append(_Global(name))

    def load_storage(self, _: Any) -> None:
        (reference,) = self.pop(1)
        word, kind, key, _device, _elements = reference
        if word != "storage" or not isinstance(key, str):
            raise ValueError(word)
        self.stack.append(_Storage(kind.name.partition(" ")[2], key))

    def reduce(self, _: Any) -> None:
        function, arguments = self.pop(2)
        if function.name == _DICT:
            self.stack.append({})
        elif function.name == _PARAMETER:
            self.stack.append(arguments[0])
        else:
            storage, offset, shape = arguments[:3]
            if not all(is_integer(size) and size >= 0 for size in (offset, *shape)) or not storage.key:
                raise ValueError(shape)
            self.stack.append(_TensorOf(storage, offset, tuple(shape)))

    def set_items(self, items: List[Any]) -> None:
        self.stack[-1].update(zip(items[::2], items[1::2]))

    def memoize(self, number: int) -> None:
        self.memo[number] = self.stack[-1]


Step = Callable[[_Machine, Any], None]


def _push(value: Callable[[_Machine, Any], Any]) -> Step:
    return lambda machine, argument: machine.stack.append(value(machine, argument))


_STEPS: Dict[str, Step] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE"), _push(lambda _, value: value)
    ),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda machine, number: machine.memoize(number)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _push(lambda machine, number: machine.memo[number])),
    "GLOBAL": lambda machine, name: machine.load_global(name),
    "BINPERSID": _Machine.load_storage,
    "REDUCE": _Machine.reduce,
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "EMPTY_DICT": _push(lambda machine, _: {}),
    "EMPTY_TUPLE": _push(lambda machine, _: ()),
    "NONE": _push(lambda machine, _: None),
    "NEWTRUE": _push(lambda machine, _: True),
    "NEWFALSE": _push(lambda machine, _: False),
    "TUPLE": _push(lambda machine, _: tuple(machine.pop_mark())),
    "TUPLE1": _push(lambda machine, _: tuple(machine.pop(1))),
    "TUPLE2": _push(lambda machine, _: tuple(machine.pop(2))),
    "TUPLE3": _push(lambda machine, _: tuple(machine.pop(3))),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
}


def _broken(what: str) -> InputError:
    step = "Fetch this file again from the drafter's revision; if it is the same there, do not use it."
    return InputError(_DOING, what, "one tensor as torch.save writes it", step, code="DG218")
