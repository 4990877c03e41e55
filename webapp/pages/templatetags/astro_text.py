"""Formulas (LaTeX to MathML) and highlighted code. Everything here starts from hostile text."""

import re
from xml.etree import ElementTree

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from latex2mathml.converter import convert
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import JsonLexer, PythonLexer, PythonTracebackLexer, YamlLexer

from webapp.pages.templatetags.astro import clean

register = template.Library()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MATHML = "{http://www.w3.org/1998/Math/MathML}"
ELEMENTS = _words(
    "math mrow mi mn mo ms mtext mspace msup msub msubsup mfrac msqrt mroot mover munder munderover mtable mtr mtd "
    "mstyle mpadded mphantom menclose mmultiscripts mprescripts none semantics"
)
ATTRIBUTES = _words(
    "display stretchy fence form lspace rspace width height depth mathvariant columnalign rowspacing columnspacing "
    "columnlines rowlines accent accentunder movablelimits largeop linethickness displaystyle scriptlevel minsize "
    "maxsize separator symmetric notation voffset"
)
MAX_FORMULA_CHARS = 2000
# `$5 and $6` is money: an opening $ is followed, and a closing one preceded, by no blank, and no digit follows it.
FORMULA = re.compile(
    r"\\\((?P<a>.+?)\\\)|\\\[(?P<b>.+?)\\\]|\$\$(?P<c>.+?)\$\$|(?<![\\$])\$(?![\s$])(?P<d>[^$\n]+?)(?<![\s\\])\$(?!\d)",
    re.DOTALL,
)
LEXERS = {"python": PythonLexer, "yaml": YamlLexer, "json": JsonLexer, "traceback": PythonTracebackLexer}
MAX_HIGHLIGHT_CHARS = 100_000


def formula(latex: str, *, block: bool) -> str | None:
    """MathML, or None when the formula is not understood or the result is anything but plain MathML."""
    if len(latex) > MAX_FORMULA_CHARS:
        return None
    try:
        tree = ElementTree.fromstring(convert(latex, display="block" if block else "inline"))  # noqa: S314
    except Exception:  # noqa: BLE001  the converter raises whatever a strange formula makes it meet
        return None
    for element in tree.iter():
        if not isinstance(element.tag, str) or not element.tag.startswith(MATHML):
            return None
        element.tag = element.tag.removeprefix(MATHML)
        if element.tag not in ELEMENTS:
            return None
        element.attrib = {k: v for k, v in element.attrib.items() if k in ATTRIBUTES}
    return ElementTree.tostring(tree, encoding="unicode")  # written anew: every text is escaped


@register.filter
def math(text: str) -> SafeString:
    """Text with its formulas as MathML; what cannot be read stays as it was written."""
    text = clean(text)
    parts, at = [], 0
    for match in FORMULA.finditer(text):
        latex = next(g for g in match.groups() if g is not None)
        block = match.lastgroup in ("b", "c")
        mathml = formula(latex, block=block)
        parts += [escape(text[at : match.start()]), mathml if mathml is not None else escape(match.group())]
        at = match.end()
    return mark_safe("".join([*parts, escape(text[at:])]))  # noqa: S308


@register.filter
def code(text: str, language: str = "python") -> SafeString:
    """Highlighted by classes only; Pygments escapes the text."""
    text = clean(text)
    if len(text) > MAX_HIGHLIGHT_CHARS or language not in LEXERS:
        return escape(text)
    lexer = LEXERS[language](stripnl=False)
    return mark_safe(highlight(text, lexer, HtmlFormatter(nowrap=True)))  # noqa: S308
