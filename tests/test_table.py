"""Tables in HTML: what a notebook shows."""

import re

from byname.axes import colours
from byname.diagnose.finding import Finding
from byname.table import to_html

ROWS = [{"name": "<b>", "count": 3, "bytes": 2048}, {"name": "x", "count": None, "bytes": 1}]


def styles(tag, html):
    return re.findall(rf'<{tag} style="text-align:(\w+)', html)


def test_text_is_at_the_left_and_numbers_are_at_the_right_whatever_the_notebook_does_with_cells():
    html = to_html(ROWS, title="all & more", notes=["<i>"])
    assert styles("th", html) == ["left", "right", "right"] and styles("td", html) == ["left", "right", "right"] * 2
    assert styles("caption", html) == ["left"]


def test_all_text_is_escaped():
    html = to_html(ROWS, title="all & more", notes=["<i>"])
    assert "<b>" not in html and "&lt;b&gt;" in html and "all &amp; more" in html and "&lt;i&gt;" in html


def test_sizes_stay_on_one_line():
    assert re.search(r'<td style="[^"]*white-space:nowrap[^"]*">2\.0 KiB</td>', to_html(ROWS))


def test_a_finding_breaks_its_lines_between_words_and_is_escaped():
    html = Finding("free-leaf", "a < b")._repr_html_()
    assert "word-break:normal" in html and "a &lt; b" in html


def test_every_curve_can_be_seen_on_white_paper():
    for count in (1, 2, 5, 100):
        found = colours(count)
        assert len({*found}) == count
        for red, green, blue, _ in found:
            linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (red, green, blue)]
            luminance = sum(part * one for part, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
            assert 1.05 / (luminance + 0.05) > 2  # the contrast of WCAG; yellow has 1.1
