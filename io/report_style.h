// The style sheet of report.html.
#pragma once

namespace convoy {

constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark; --page: #fcfcfb; --card: #ffffff; --text: #1d1f22; --soft: #63676d; --line: #e2e3e5;
  --c0: #2566c8; --c1: #c2571a; --c2: #2a8a5f; --c3: #7d4fb5; }
@media (prefers-color-scheme: dark) { :root { --page: #17181a; --card: #1f2124; --text: #e6e7e9; --soft: #9ca1a8;
  --line: #34373c; --c0: #6ea3f5; --c1: #ec9560; --c2: #64c49a; --c3: #b795e6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 28px 20px 60px; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 27px; overflow-wrap: anywhere; }
h2 { margin: 34px 0 10px; font-size: 19px; }
h2 small { color: var(--soft); font-weight: normal; font-size: 14px; }
h3 { margin: 16px 0 6px; font-size: 14px; font-weight: 600; overflow-wrap: anywhere; }
.subtitle { margin: 2px 0 20px; color: var(--soft); }
table { border-collapse: collapse; background: var(--card); }
th { text-align: left; font-weight: normal; color: var(--soft); white-space: nowrap; }
th, td { padding: 5px 12px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
.summary, .iou, figure { border: 1px solid var(--line); border-radius: 6px; }
.summary { border-collapse: separate; border-spacing: 0; width: 100%; align-self: start; }
.summary td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.pair, .charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 16px; }
.charts { margin-top: 22px; }
figure { margin: 0; padding: 10px; background: var(--card); }
.chart { display: block; width: 100%; height: auto; }
.chart text { fill: var(--text); font-size: 12px; }
.chart .tick { fill: var(--soft); }
.chart .chart-title { font-size: 14px; font-weight: 600; }
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; }
.series { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.faint { opacity: .3; stroke-width: 1; }
.series-0 { stroke: var(--c0); } .series-1 { stroke: var(--c1); } .series-2 { stroke: var(--c2); }
.series-3 { stroke: var(--c3); }
.dot-0 { fill: var(--c0); } .dot-1 { fill: var(--c1); } .dot-2 { fill: var(--c2); } .dot-3 { fill: var(--c3); }
.iou { border-collapse: separate; border-spacing: 0; width: 100%; max-width: 760px; }
.iou th { color: var(--text); width: 1%; }
.iou td:last-child { text-align: right; width: 1%; white-space: nowrap; font-variant-numeric: tabular-nums; }
.iou .bar { min-width: 120px; vertical-align: middle; }
.bar i { display: block; height: 12px; min-width: 1px; border-radius: 2px; background: var(--c0); }
.total > * { font-weight: 600; }
.total .bar i { background: var(--c1); }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 250px), 1fr)); gap: 10px; }
.pictures img { display: block; width: 100%; height: auto; image-rendering: auto; }
figcaption { margin-top: 6px; color: var(--soft); font-size: 13px; }
details { margin-top: 30px; }
summary { cursor: pointer; font-size: 16px; }
pre { padding: 12px; overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
li { overflow-wrap: anywhere; }
)css";

}  // namespace convoy
