"""A bar plot of a run, as SVG."""

from html import escape

from opmux.bench.results import IMPLEMENTATION, CaseResult, Report

_ROW, _LEFT, _BARS, _RIGHT = 18, 220, 420, 200
_COLOURS = {"implementation": "#2c6fbb", "peer": "#9aa5b1"}


def svg(report: Report) -> str:
    """Each case's contenders as bars, as long as their time over the slowest one's of that case.

    The line on a bar spans the rounds' middle half; the text behind it is the median, and the ratio to the best peer.
    """
    blocks: list[str] = []
    top = 2 * _ROW + 8
    for case in report.cases:
        if case.contenders:
            blocks.append(_case(case, top))
            top += _ROW * (len(case.contenders) + 2)
    width = _LEFT + _BARS + _RIGHT
    title = escape(f"opmux bench: {report.device}, {report.arch}, {report.dtype}, torch {report.torch}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{top}" fill="white"/>\n'
        f'<text x="8" y="{_ROW}" font-size="14" font-weight="bold">{title}</text>\n' + "\n".join(blocks) + "\n</svg>\n"
    )


def _case(case: CaseResult, top: int) -> str:
    slowest = max(max(c.median_us, c.q3_us) for c in case.contenders)
    lines = [f'<text x="8" y="{top + _ROW - 5}" font-weight="bold">{escape(f"{case.op}, {case.case}")}</text>']
    for row, contender in enumerate(case.contenders, start=1):
        y, colour = top + row * _ROW, _COLOURS[contender.kind]
        text_y = y + _ROW - 5
        low, length, high = (_BARS * t / slowest for t in (contender.q1_us, contender.median_us, contender.q3_us))
        ratio = "" if contender.kind != IMPLEMENTATION or contender.ratio is None else f", {contender.ratio:.2f}x"
        weight = ' font-weight="bold"' if contender.chosen else ""
        lines += [
            f'<text x="{_LEFT - 8}" y="{text_y}" text-anchor="end"{weight}>{escape(contender.name)}</text>',
            f'<rect x="{_LEFT}" y="{y + 3}" width="{length:.1f}" height="{_ROW - 6}" fill="{colour}"/>',
            f'<line x1="{_LEFT + low:.1f}" x2="{_LEFT + high:.1f}" y1="{y + _ROW / 2}" y2="{y + _ROW / 2}" '
            'stroke="black"/>',
            f'<text x="{_LEFT + max(length, high) + 6:.1f}" y="{text_y}">{contender.median_us:.1f} us{ratio}</text>',
        ]
    return "\n".join(lines)
