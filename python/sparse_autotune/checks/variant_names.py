"""Names that users give: the error for an unknown one, and the variants that one means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from .. import _tuner


def unknown(
    argument: str, value: object, known: Iterable[str], unlisted: Iterable[str] = ()
) -> ValueError:
    """The error for a name that is not one of ``known``.

    ``unlisted`` are full names of variants: too many to show, but one may be what was meant.
    """
    names, others = list(known), list(unlisted)
    near = difflib.get_close_matches(str(value), [*names, *others], n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    more = ", or a full name as variants() lists them" if others else ""
    return ValueError(f"{argument} must be one of {', '.join(names)}{more}; got {value!r}{hint}")


def meant_variants(
    argument: str, name: object, op: str, device: str, also: Sequence[str] = ()
) -> list[str]:
    """The full names of the variants that a name or family means for ``op`` on ``device``.

    Raises:
        ValueError: there are none: none of that name was built, or for another operation or another
            device. ``also`` are other names that the argument takes, for the message.
    """
    built = _tuner.variants()
    meant = [v for v in built if name in (v["name"], v["family"])]
    if not meant:
        families = dict.fromkeys(
            v["family"] for v in built if (v["op"], v["device"]) == (op, device)
        )
        unlisted = dict.fromkeys(full for v in built for full in (v["family"], v["name"]))
        raise unknown(argument, name, [*also, *families], unlisted)
    illegal = f"{argument} {name!r} is not legal for this product: it"
    if all(v["op"] != op for v in meant):
        raise ValueError(f"{illegal} computes {meant[0]['op']}, not {op}")
    if all(v["device"] != device for v in meant):
        theirs, ours = meant[0]["device"].upper(), device.upper()
        raise ValueError(f"{illegal} runs on {theirs} tensors, not on {ours} tensors")
    return [v["name"] for v in meant]
