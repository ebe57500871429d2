"""The look of a report page: one stylesheet, light and dark, for a screen, a phone and paper.

Fonts are the reader's own and nothing is fetched. There is one accent, the verdict's; whatever it marks is
told by its form or in words too.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --panel: #f4f4f1; --line: #deded8; --ink: #1c1f22; --soft: #5a6067; --link: #0b5cad;
  --accent: #1b7a4a; --tint: #edf6f0; --track: #e3e3dd;
}
:root.fail { --accent: #b3261e; --tint: #fcf0ee; }
:root.inconclusive { --accent: #8a5800; --tint: #fbf4e4; }
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #131619; --panel: #1b1f23; --line: #31373d; --ink: #e6e9eb; --soft: #a2aab2; --link: #8ab9f0;
    --accent: #5ec48f; --tint: #14231b; --track: #2b3137;
  }
  :root.fail { --accent: #ff8c82; --tint: #241615; }
  :root.inconclusive { --accent: #e5b454; --tint: #261f10; }
}

* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 68rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
h1, h2, h3, p, ul, ol, dl, dd, figure, pre { margin: 0; padding: 0; }
ul { list-style: none; }
a { color: var(--link); text-underline-offset: .15em; }
a:focus-visible, [tabindex]:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
code, pre, .code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .875em; }
.soft { color: var(--soft); font-size: .875rem; }
.unseen {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap;
}

/* the verdict */
header { background: var(--tint); border: 1px solid var(--line); border-left: 6px solid var(--accent);
  border-radius: 8px; padding: 1.1rem 1.35rem 1.25rem; }
.verdict { display: flex; align-items: center; gap: .7rem; }
.verdict svg { flex: none; width: 2.1rem; height: 2.1rem; }
.verdict svg circle { fill: var(--accent); }
.verdict svg path {
  fill: none; stroke: var(--paper); stroke-width: 2.6; stroke-linecap: round; stroke-linejoin: round;
}
h1 {
  font-size: 1.85rem; line-height: 1.15; letter-spacing: -.01em; font-weight: 700; color: var(--accent);
}
h1 span { display: block; margin-top: .15rem; font-size: 1rem; line-height: 1.4; font-weight: 500;
  letter-spacing: 0; color: var(--ink); }
.story { margin-top: .9rem; display: grid; gap: 1rem 2rem; align-items: start; }
.said { display: grid; gap: .65rem; }
.said b { font-weight: 600; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem 1.9rem; margin-top: 1.1rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
.facts dt { font-size: .8rem; line-height: 1.3; color: var(--soft); }
.facts dd { font-weight: 600; }
.first {
  padding: .75rem 1rem .85rem; border: 1px solid var(--line); border-radius: 6px; background: var(--paper);
}
.first h2 { margin: 0 0 .15rem; font-size: .8rem; font-weight: 600; color: var(--soft); }

/* sections */
section { margin-top: 2.4rem; }
h2 { font-size: 1.15rem; line-height: 1.3; font-weight: 650; margin-bottom: .75rem; }
h2 + .soft { margin: -.45rem 0 .9rem; max-width: 44rem; }
h3 { font-size: 1rem; line-height: 1.4; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; }
th, td { padding: .5rem 0 .5rem 1.1rem; text-align: right; vertical-align: top; font-weight: 400; }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
thead th { padding-top: 0; font-size: .8rem; color: var(--soft); white-space: nowrap; }
tbody tr { border-top: 1px solid var(--line); }
tbody td { white-space: nowrap; }
tbody th { width: 44%; min-width: 7.5rem; }
td.words, th.words { text-align: left; white-space: normal; min-width: 7rem; }
td b { font-weight: 650; }
.missed { color: var(--accent); font-weight: 700; }

.pair { display: grid; grid-template-columns: minmax(0, 1fr); }
@media (min-width: 60rem) {
  .story:has(> .first) { grid-template-columns: minmax(0, 1fr) 23rem; }
  .pair:has(> :nth-child(2)) { grid-template-columns: 26rem minmax(0, 1fr); column-gap: 3.5rem; }
}

/* pictures */
.curve { --label: 2.2rem; }
.meter { display: block; width: 100%; max-width: 22rem; height: 12px; margin: .3rem 0 .1rem; }
.sparks { width: 6rem; vertical-align: -4px; }
.track { fill: var(--track); }
.level, .bar { fill: var(--accent); }
.limit { stroke: var(--ink); stroke-width: 2; }
.limit.even { stroke-dasharray: 1 5; stroke-linecap: round; stroke-width: 2.5; }
.halo { stroke: var(--paper); stroke-width: 5; }
.before { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 4; }
.diamond { fill: var(--paper); stroke: var(--ink); stroke-width: 1.5; }
.grid { stroke: var(--line); stroke-width: 1; }
.scale { fill: var(--soft); font-size: 11px; text-anchor: end; }
.curve > div { max-width: calc(var(--label) + var(--columns) * var(--widest)); }
.plot { display: block; width: calc(100% - var(--label)); margin-left: var(--label); overflow: visible; }
.curve table { table-layout: fixed; margin-top: .35rem; font-size: .875rem; }
.curve :is(th, td) { padding: .1rem 0; text-align: center; overflow-wrap: normal; white-space: nowrap; }
.curve :is(th, td):first-child { width: var(--label); min-width: 0; text-align: left; }
.curve thead th { font-size: .75rem; }
.curve tbody tr { border: 0; }
.curve tbody tr + tr td { color: var(--soft); }
.legend {
  display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; margin-bottom: .8rem; font-size: .875rem;
  color: var(--soft);
}
.legend li { display: flex; align-items: center; gap: .5rem; }
.glyph { flex: none; display: inline-block; vertical-align: -2px; overflow: visible; }

/* causes */
.suspects { counter-reset: place; list-style: none; }
.suspects > li, .findings > li {
  padding: .85rem 0; border-top: 1px solid var(--line); display: grid; gap: .3rem;
}
.suspects > li { counter-increment: place; padding-left: 2.6rem; position: relative; }
.suspects > li::before {
  content: counter(place); position: absolute; left: 0; top: .85rem; width: 1.65rem; height: 1.65rem;
  border: 1.5px solid var(--line); border-radius: 50%; font-size: .85rem; line-height: 1.5rem;
  text-align: center; font-weight: 600;
}
.suspects > li:first-child::before { border-color: var(--accent); color: var(--accent); }
.suspects p, .findings p, .said p { max-width: 48rem; }
.tag, .code {
  display: inline-block; border: 1px solid var(--line); line-height: 1.45; white-space: nowrap;
  vertical-align: .06em;
}
.tag { padding: 0 .5rem; border-radius: 1rem; font-size: .78rem; font-weight: 500; color: var(--soft); }
.tag.error { color: var(--ink); border-color: currentColor; font-weight: 700; }
.code { padding: 0 .35rem; border-radius: 4px; background: var(--panel); font-size: .8rem; font-weight: 600; }
.next { padding-left: 1.35rem; text-indent: -1.35rem; }
.next::before {
  content: "\\2192"; display: inline-block; width: 1.35rem; text-indent: 0; color: var(--accent);
  font-weight: 700;
}

/* the record */
.record {
  display: grid; grid-template-columns: minmax(9rem, max-content) 1fr; gap: .35rem 1.5rem;
  font-size: .9375rem;
}
.record dt { color: var(--soft); }
.record dd { min-width: 0; }
pre { padding: .9rem 1.05rem; border: 1px solid var(--line); border-radius: 6px; background: var(--panel);
  font-size: .875rem; line-height: 1.6; white-space: pre-wrap; user-select: all; }
footer { margin-top: 2.75rem; padding-top: .9rem; border-top: 1px solid var(--line); }

@media (max-width: 34rem) {
  html { font-size: 93.75%; }
  body { padding: .75rem .75rem 2rem; }
  header { padding: .9rem .95rem 1rem; }
  .facts { gap: .55rem 1.35rem; }
  section { margin-top: 2rem; }
  table { font-size: .875rem; }
  th + th, th + td, td + td { padding-left: .5rem; }
  tbody th { width: auto; min-width: 5rem; }
  .pair td { white-space: normal; overflow-wrap: normal; }
  :is(th, td):has(> .wide) { display: none; }
  .curve table { font-size: .75rem; }
  .curve thead th { font-size: .7rem; }
  .curve.many { --label: 1.6rem; }
  .curve.many :is(th, td) { font-size: .64rem; letter-spacing: -.02em; }
  .record { grid-template-columns: 1fr; gap: 0; }
  .record dd { margin-bottom: .6rem; }
  .suspects > li { padding-left: 2.2rem; }
}

@media print {
  :root, :root.fail, :root.inconclusive {
    color-scheme: light; --paper: #fff; --panel: #fff; --tint: #fff; --line: #c8c8c2; --ink: #000;
    --soft: #444; --link: #000; --track: #ddd;
  }
  :root { --accent: #1b7a4a; } :root.fail { --accent: #b3261e; } :root.inconclusive { --accent: #8a5800; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  section { margin-top: 1.4rem; }
  header, tr, li, figure, .record > * { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  a { text-decoration: none; }
  a[href^="https"]::after { content: " <" attr(href) ">"; font-size: .8em; }
  .scroll { overflow: visible; }
}
"""
