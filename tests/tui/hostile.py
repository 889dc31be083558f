"""Text of every kind that does harm where it is taken for markup, commands or one cell a character."""

from __future__ import annotations

from hypothesis import strategies as st

MARKUP = "[bold red]x[/] [/] [@click=app.quit]y[/] [[z]] $primary {0} %s"
ESCAPES = "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b[2J\x1bPq\x1b\\"
C1 = "a\x80\x85\x9b31m\x9d0;t\x9cb"
BIDI = "user\u202etxt.exe\u202c\u2066x\u2069\u200f\u200e"
ZERO_WIDTH = "a\u200bb\u200c\u200d\ufeff\u2060c\xad"
WIDE = "訓練工作負載" * 40
COMBINING = "e\u0301" * 60 + "a" + "\u0300" * 300
EMOJI = "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪✊🏽"
SURROGATES = "broken \udcff\udc80 utf-8 \ud83d"
LINES = "one\ntwo\r\nthree\rfour\tfive\x0bsix\x0cseven\u2028eight\u2029nine\x00"
LONG = "m" * (1 << 20)

ALL = (MARKUP, ESCAPES, C1, BIDI, ZERO_WIDTH, WIDE, COMBINING, EMOJI, SURROGATES, LINES, LONG, "", " ", "\x00")
texts = (
    st.sampled_from(ALL)
    | st.text(max_size=60)
    | st.text(st.sampled_from("[]/\\a 訓e\u0301\x1b\u202e\udcff\t"), max_size=40)
)


def harmless(shown: str) -> bool:
    """Whether a terminal puts all of it into cells and obeys none of it."""
    return shown.isprintable()
