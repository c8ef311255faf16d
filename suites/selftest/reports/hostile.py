"""Reports by a stranger: one string in all places, whatever it is."""

import types
import typing
from functools import cache
from typing import Any, Final

import msgspec

from reports import html
from reports.model import Report
from suites.selftest.reports import samples

SAMPLES: Final = {"wrong": samples.wrong(), "slow": samples.slow(), "good": samples.good()}
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
HOSTILE: Final = {
    "script": "<script>document.title='ran'</script>",
    "end of everything": "</pre></style></title></textarea></svg><script>document.title=1</script>",
    "attribute": "\" onmouseover=\"document.title='ran'\" autofocus onfocus='document.title=1' x='",
    "image": "<img src=x onerror=\"document.title='ran'\">",
    "svg": "<svg><script>document.title='ran'</script><animate onbegin=document.title=1></svg>",
    "mathml": "<math><mtext><table><mglyph><style><img src onerror=document.title='ran'>",
    "address": "javascript:document.title='ran' https://example.org/ //example.org/x.png",
    "refresh": '<meta http-equiv="refresh" content="0;url=https://example.org/">',
    "style": "</style><style>body{background:url(https://example.org/x)}@import 'x.css';",
    "comment": "--> ]]> <!-- <![CDATA[ &lt;script&gt; &#60;b&#62; {{ 7 * 7 }} {% raw %}",
    "mathematics": r"$\frac{1}{ $ $x_{y}$ \$ $$ %s %(a)s {0}",
    "control": "a\x00b\x1b[31mc\x7f\x85\u2028\u202ed\u2066e\ufeff\ud800\ufffe\n\r\tf",
    "other fonts": "\U0001f4a9 漢字 \u0627\u0644 e\u0301\u0302\u0303",
    "legend": "_hidden from a legend",
    "wide": "W" * 5000 + "!",
    "empty": "",
}


@cache
def page_of(name: str) -> str:
    """Of a sample, or of a report that is hostile in all its places."""
    return html.render(SAMPLES.get(name) or everywhere(HOSTILE[name]))


# Quantities of which there are pictures.
PICTURED: Final = (
    "median us",
    "quartile spread %",
    "bytes moved",
    "multiplications and additions",
    "copy GB/s",
    "matrix 10^9/s",
    "peak MiB",
    "formula MiB",
)


def everywhere(text: str, number: float = 0.5, length: int = 3) -> Report:
    """``text`` in every field that is text, ``length`` of everything there may be many of.

    The second and further ones have their number added.
    """
    made = _filled(Report, text, number, length)
    assert isinstance(made, Report)
    pictured = tuple(
        msgspec.structs.replace(line, subject=f"{text} {size}", quantity=quantity)
        for line in made.measured
        for size in ("rows 32", "S 1024")
        for quantity in PICTURED
    )
    return msgspec.structs.replace(made, measured=(*made.measured, *pictured))


def _filled(kind: Any, text: str, number: float, length: int) -> Any:
    again = (text, number, length)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (types.UnionType, typing.Union):
        return _filled(arguments[0], *again)
    if origin is tuple and arguments[-1] is Ellipsis:
        texts = (f"{text} {n}" if n else text for n in range(length))
        return tuple(_filled(arguments[0], each, number, length) for each in texts)
    if origin is tuple:
        return tuple(_filled(each, *again) for each in arguments)
    if origin is dict:
        return {text: _filled(arguments[1], *again)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{n: _filled(k, *again) for n, k in typing.get_type_hints(kind).items()})
    assert kind in (str, int, float, bool), kind
    return {str: text, float: number, int: 1, bool: True}[kind]
