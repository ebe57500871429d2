"""``mask_embedding.pt``: a row that replaces the mask's in the target's embedding (MiMo's drafters ship one).

It is what torch.save writes: a zip with a pickle in it. A pickle is a program, so it is never run here: its
opcodes are looked at one after the other, and any but those of a tensor refuses the file.
Format: https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import math
import os
import pickletools
import re
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from .config_fields import is_integer
from .errors import InputError
from .untrusted import open_file

FILE_NAME = "mask_embedding.pt"
_LARGEST = 4 << 20  # a row of the widest target has 64 KiB; zipfile keeps the whole directory in memory
_LONGEST_PICKLE = 64 << 10  # that of one tensor has 200 bytes

_STORAGES = {"BFloat16Storage": 2, "HalfStorage": 2, "FloatStorage": 4, "LongStorage": 8}
_NAMES = {"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", "collections OrderedDict"}
_NAMES |= {f"torch {storage}" for storage in _STORAGES}
_OPCODES = re.compile(
    "PROTO|FRAME|STOP|MARK|GLOBAL|REDUCE|BINPERSID|EMPTY_DICT|EMPTY_TUPLE|NONE|NEWTRUE|NEWFALSE|TUPLE[123]?|"
    "SETITEMS?|MEMOIZE|(LONG_)?BIN(PUT|GET)|BININT[12]?|BINFLOAT|(SHORT_)?BINUNICODE"
)


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
        return math.prod(self.shape)


def read_mask_embedding(drafter_dir: str) -> Optional[MaskEmbedding]:
    """The file beside a drafter's weights; None where there is none.

    :raises InputError: DG218, it is no zip of torch.save, its pickle has an opcode or a name that no tensor
        needs, or it has fewer bytes than the tensor.
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
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as exc:
        raise _broken(f"it is no zip as torch.save writes it ({exc})") from exc
    except (ValueError, LookupError, StopIteration) as exc:
        raise _broken(f"it makes no sense ({type(exc).__name__})") from exc


def _embedding(archive: zipfile.ZipFile) -> MaskEmbedding:
    pickle = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
    steps = _steps(_member(archive, pickle, _LONGEST_PICKLE))
    kind, key, offset, shape = _tensor(steps)
    names = [argument for name, argument in steps if name.endswith("BINUNICODE")]
    if steps[0][0] == "EMPTY_DICT" and "embedding" not in names:
        raise _broken("it holds a dict without the tensor 'embedding'")
    row = MaskEmbedding(shape, kind, _mask_token_id(steps), False)
    size = _STORAGES[kind]
    stored = _member(archive, f"{pickle[: -len('data.pkl')]}data/{key}", _LARGEST)
    data = stored[offset * size : (offset + row.elements) * size]  # a row is contiguous
    if len(data) != row.elements * size:
        raise _broken(f"a tensor of {list(shape)} has {len(data)} bytes, not {row.elements * size}")
    return MaskEmbedding(shape, kind, row.mask_token_id, not any(data))


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Its size is checked while it is read, whatever the zip's directory says."""
    with archive.open(name) as handle:
        data = handle.read(most + 1)
    if len(data) > most:
        raise _broken(f"its member {name!r} has more than {most} bytes")
    return data


def _steps(pickle: bytes) -> List[Tuple[str, Any]]:
    steps = []
    for opcode, argument, _ in pickletools.genops(pickle):
        if not _OPCODES.fullmatch(opcode.name):
            raise _broken(f"its pickle has the opcode {opcode.name}, which no tensor needs")
        if opcode.name == "GLOBAL" and argument not in _NAMES:
            raise _broken(f"its pickle names {argument!r}, which no tensor needs")
        if opcode.name not in ("PROTO", "FRAME", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            steps.append((opcode.name, argument))
    return steps


def _tensor(steps: List[Tuple[str, Any]]) -> Tuple[str, str, int, Tuple[int, ...]]:
    """Kind and key of the first row's storage, the offset in it, and the shape.

    ``MARK 'storage' GLOBAL key device elements TUPLE BINPERSID offset [MARK] size … TUPLEn`` it is written.
    """
    names = [name for name, _ in steps]
    found = [at for at, name in enumerate(names) if name == "BINPERSID"]
    if not found:
        raise _broken("it holds no tensor")
    at = next((at for at in found if steps[at - 5][1] != "torch LongStorage"), found[0])  # an id may be one
    (_, kind), (_, key) = steps[at - 5 : at - 3]
    end = next(index for index in range(at + 2, len(steps)) if "TUPLE" in names[index])
    offset, *shape = [argument for name, argument in steps[at + 1 : end] if name != "MARK"]
    if not all(is_integer(size) and size >= 0 for size in (offset, *shape)):
        raise ValueError(shape)
    return str(kind).partition(" ")[2], str(key), offset, tuple(shape)


def _mask_token_id(steps: List[Tuple[str, Any]]) -> Optional[int]:
    at = next((index for index, (_, argument) in enumerate(steps) if argument == "mask_token_id"), None)
    name, said = ("", None) if at is None else steps[at + 1]
    return said if name.startswith("BININT") else None


def _broken(what: str) -> InputError:
    step = "Fetch this file again; if it is the same in the drafter's revision, do not use it."
    return InputError(f"reading the drafter's {FILE_NAME}", what, "", step, code="DG218")
