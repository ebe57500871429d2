"""The report page: what is in it, that it is whole and loads nothing, and that text stays text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from draftgate import page_markup
from draftgate.codes import CODES
from draftgate.page import page
from draftgate.page_markup import el
from draftgate.page_style import STYLE

from tests.unit.pages import ALONE, COMMAND, EVIDENCES, FAIL, MASK, PASS, SERVING, Page, shown

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp; javascript:alert(3)"


def hostile(value: Any) -> Any:
    """Every text of an evidence replaced by markup; codes and times stay in front, for they are looked up."""
    if isinstance(value, dict):
        return {key: hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) else value


# Whole and on its own


@pytest.mark.parametrize("name", EVIDENCES)
@pytest.mark.parametrize("told", [True, False])
def test_it_is_well_formed_and_every_reference_resolves(name: str, told: bool) -> None:
    read = Page(shown(name) if told else page(EVIDENCES[name]))
    ids = read.attributes("id")
    assert len(ids) == len(set(ids))
    wanted = [word for labels in read.attributes("aria-labelledby") for word in labels.split()]
    wanted += [href[1:] for href in read.attributes("href") if href.startswith("#")]
    assert set(wanted) <= set(ids)
    assert [tag for tag, _ in read.elements].count("h1") == 1
    assert all(given.get("scope") in ("row", "col") for given in read.named("th"))
    assert {given["lang"] for given in read.named("html")} == {"en"}


@pytest.mark.parametrize("name", EVIDENCES)
def test_it_loads_nothing(name: str) -> None:
    read = Page(shown(name))
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "img", "iframe", "object", "embed", "use", "image", "base", "form"}
    assert not read.attributes("src") and not [word for word in STYLE.split() if "url(" in word]
    assert "@import" not in STYLE and "@font-face" not in STYLE
    assert [given["href"][:5] for given in read.named("link")] == ["data:"]
    outside = [href for href in read.attributes("href") if not href.startswith(("#", "data:image/svg+xml,"))]
    assert all(href.startswith("https://github.com/") for href in outside)
    (policy,) = [given for given in read.named("meta") if given.get("http-equiv")]
    assert policy["content"].startswith("default-src 'none'")


@pytest.mark.parametrize("name", EVIDENCES)
def test_hostile_text_stays_text(name: str) -> None:
    changed = [{"field": HOSTILE, "before": HOSTILE, "after": {HOSTILE: HOSTILE}}]
    told: dict[str, Any] = {
        "stages": {HOSTILE: 3.0},
        "command": HOSTILE,
        "serving": HOSTILE,
        "differs": changed,
    }
    clean, read = Page(shown(name)), Page(page(hostile(EVIDENCES[name]), **told))
    assert not [tag for tag, _ in read.elements if tag in ("script", "img")]
    assert not [name for _, given in read.elements for name in given if name.startswith("on")]
    assert {tag for tag, _ in read.elements} <= {tag for tag, _ in clean.elements} | {"li", "ul", "b"}
    assert not [href for href in read.attributes("href") if "script" in href]
    assert read.text.count("<script>alert(1)</script>") > 10


def test_what_no_text_may_hold_is_replaced() -> None:
    """A lone surrogate (JSON can carry one) cannot be written; a turned direction would show another id."""
    text = page({**PASS, "host": "a\x00b\ud800c\u202ed", "target": {"digest": "\udfff"}})
    assert "a\ufffdb\ufffdc\ufffdd" in Page(text.encode("utf-8").decode("utf-8")).text


@pytest.mark.parametrize("address", ["javascript:alert(1)", "http://x", "//x", "data:text/html,x", " #a"])
def test_an_element_takes_no_other_address(address: str) -> None:
    with pytest.raises(ValueError, match="an address"):
        el("a", "x", href=address)


def test_a_stylesheet_cannot_end_its_element() -> None:
    with pytest.raises(ValueError, match="closing tag"):
        str(el("style", "a { } </style><script>"))


def test_children_are_text_elements_or_lists_of_them() -> None:
    told = el("p", "a < b", None, 3, [el("b", "c", class_="x"), ["&"]], hidden=True, title=None)
    assert str(told) == '<p hidden>a &lt; b3<b class="x">c</b>&amp;</p>'
    assert str(page_markup.linked("see vllm#40727!")[1]).startswith(
        '<a href="https://github.com/vllm-project'
    )


# What is in it


def test_a_pass_says_what_was_measured() -> None:
    text = Page(shown("pass")).text
    assert text.index("PASS") < text.index("release cc6dc4824c56 on localhost") < text.index(SERVING)
    for told in (
        "measured 2026-11-30 19:48:15 UTC",
        "engine vllm 0.32.0",
        "drafted per step (k) 7",
        "mask token 512",
        "target layers 1, 5, 9",
        "mean acceptance length τ a rate of 14.3 % at k=7 is τ 2.00 6.72 ≥ 2.00 ok",
        "position 1 95.2 % ≥ 40.0 % ok",
        "acceptance rate 81.7 % not judged",
        "95 92 88 82 75 72 68",
        "4.99 57.0 %",
        "counted by our requests, one by one",
        "own share 100 %",
        "temperature 0",
        "enable_thinking false",
        "concurrency 1",
        "start 45s · gate 13s",
        f"prompts {PASS['prompts']['digest']}",
        f"target {PASS['target']['digest']}",
        f"drafter {PASS['drafter']['digest']}",
        f"release (serve) {PASS['serve_digest']}",
        f"measurement (gate) {PASS['gate_digest']}",
        COMMAND,
    ):
        assert told in text, told
    assert "missed" not in text and "Suspects" not in text


def test_a_failure_says_why_and_what_to_do_first() -> None:
    read = Page(shown("fail"))
    text, titles = read.text, read.attributes("title")
    first = text.index("Look here first drafter_overrides sets dflash_config.mask_token_id to 300")
    assert text.index("FAIL") < text.index("DG802 Measured and bad") < first < text.index("Measured against")
    for reason in FAIL["reasons"]:
        code = CODES[reason["code"]]
        assert f"{reason['code']} {reason['message']}" in text
        assert f"{code.meaning} {code.fix}" in text and code.title in titles
    assert text.count("missed") == 3
    places = [text.index(suspect["cause"], text.index("Suspects")) for suspect in FAIL["suspects"]]
    assert places == sorted(places)
    assert all(suspect["next"] in text for suspect in FAIL["suspects"])
    assert f"{MASK} 512 300" in text
    assert "last green: cc6dc4824c56, 2026-11-30" in text


def test_a_finding_is_explained_with_its_source_and_its_acceptance() -> None:
    finding = {**FAIL["findings"][0], "source": "sglang#37475", "accepted": "we <know>"}
    markup = page({**FAIL, "findings": [finding]})
    text = Page(markup).text
    assert "Accepted: we <know>" in text and '"id": 300' in text
    assert CODES["DG207"].meaning in text
    assert "https://github.com/sgl-project/sglang/issues/37475" in Page(markup).attributes("href")
    assert "https://github.com/vllm-project/vllm/issues/46435" in Page(markup).attributes("href"), (
        "a suspect's"
    )


@pytest.mark.parametrize(
    ("name", "there", "absent"),
    [
        ("alone", ["The target answers alone", "speculation none", "67.0"], ["by position", "τ", "drafts"]),
        ("unmeasured", ["DG825 Could not measure", "Suspects"], ["Acceptance by position", "By workload"]),
        ("few", ["INCONCLUSIVE", "nothing was proven", "DG811 Not enough"], [" ok ", "Look here first"]),
        ("no-drafts", ["DG801", "69.2", "0 ≥ 200"], ["Acceptance by position", " ok "]),
    ],
)
def test_what_was_not_measured_is_not_shown(name: str, there: list[str], absent: list[str]) -> None:
    main = Page(shown(name)).text
    assert [told for told in there if told not in main] == []
    measured_part = main.split("How it was measured")[0]
    assert [told for told in absent if told in measured_part] == []


def test_optional_parts_are_left_out() -> None:
    text = Page(page(PASS)).text
    for heading in ("What changed", "To do it again", "After this run", "Suspects", "Findings"):
        assert heading not in text


def test_an_older_evidence_has_a_page_too() -> None:
    kept = ("verdict", "release", "acceptance", "thresholds", "num_speculative_tokens", "time")
    text = Page(page({key: PASS[key] for key in kept})).text
    assert "6.72" in text


# The curve


def bars(read: Page) -> list[dict[str, str]]:
    return [
        given for given in read.named("rect") if given.get("class") == "bar" and "%" in given.get("x", "")
    ]


@pytest.mark.parametrize("name", ["pass", "fail", "k-1", "k-15", "k-15-good", "k-11-after-k-7"])
def test_the_curve_has_a_bar_for_each_position(name: str) -> None:
    read, rates = Page(shown(name)), EVIDENCES[name]["acceptance"]["per_position"]
    assert len(bars(read)) == len(rates)
    heights = [float(bar["height"]) for bar in bars(read)]
    assert heights == sorted(heights, reverse=True) and min(heights) > 0
    tops = [float(bar["y"]) + float(bar["height"]) for bar in bars(read)]
    assert max(tops) - min(tops) < 0.2, "they stand on one line"
    assert heights[0] == pytest.approx(max(1.5, 200 * rates[0]), abs=0.1)
    assert all(0 <= float(bar["x"][:-1]) < 100 for bar in bars(read))


def test_the_earlier_curve_differs_in_form_and_not_in_colour_alone() -> None:
    read = Page(shown("fail"))
    dashed = [given for given in read.named("line") if given.get("class") == "before" and "%" in given["x1"]]
    diamonds = [given for given in read.named("path") if given.get("class") == "diamond"]
    assert len(dashed) == 6 and len(diamonds) == 7 + 2  # seven positions, the legend, the table's row
    assert re.search(r"\.before \{[^}]*stroke-dasharray", STYLE)
    assert not [given for given in Page(shown("pass")).named("line") if given.get("class") == "before"]


def test_another_evidence_to_compare_with() -> None:
    assert "last green: cc6dc4824c56" in Page(page({**PASS, "reference": None}, previous=PASS)).text
    assert "last green: " not in Page(page(PASS)).text


def test_the_curve_is_told_in_words_and_figures() -> None:
    read = Page(shown("fail"))
    (described,) = [text for tag, text in read.texts if tag == "desc"]
    assert "This release: 1 0 %, 2 0 %" in described and "1 95 %, 2 92 %" in described
    assert "wished at position 1: ≥ 40.0 %" in described
    assert "0 0 0 0 0 0 0" in read.text and "95 92 88 82 75 72 68" in read.text


@pytest.mark.parametrize(
    ("thresholds", "told"),
    [
        ({"acceptance_min_position_1": 0.4}, ["wished at position 1: ≥ 40.0 %"]),
        ({"acceptance_min_mean_length": 2.0}, ["on average for τ ≥ 2.00: 14.3 %"]),
        ({"acceptance_min_rate": 0.3}, ["wished on average: ≥ 30.0 % (a rate of 30.0 % at k=7 is τ 3.10)"]),
        ({}, []),
    ],
)
def test_thresholds_are_lines_with_their_meaning(thresholds: dict[str, float], told: list[str]) -> None:
    nothing = dict.fromkeys(PASS["thresholds"])
    read = Page(page({**PASS, "thresholds": {**nothing, **thresholds}}))
    lines = [given for given in read.named("line") if given.get("class") in ("limit", "limit even")]
    across = [given for given in lines if given["x1"] == "0" and "%" in given["x2"]]
    assert len(across) == len(told)
    assert all(text in read.text for text in told)
    if "acceptance_min_position_1" in thresholds:
        assert across[0]["y1"] == "132.0" and across[0]["x2"] == "14.29%", "40 % of 200 px, one column wide"


def test_bars_of_the_workloads_are_to_scale() -> None:
    read = Page(shown("pass"))
    widths = [
        given["width"] for given in read.named("rect") if given.get("rx") == "3" and "level" in given["class"]
    ]
    taus = [kind["mean_acceptance_length"] for kind in PASS["workloads"]]
    assert widths[-5:] == [f"{100 * (tau - 1) / 7:.1f}%" for tau in taus]


def test_the_evidence_is_not_changed() -> None:
    before = json.dumps(FAIL)
    shown("fail")
    assert json.dumps(FAIL) == before and ALONE["drafter"] is None
