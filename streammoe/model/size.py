"""How large a model may become."""

from __future__ import annotations

from streammoe.bounds import MAX_BUFFER_BYTES, MAX_STATE_BYTES, buffer_bytes, model_bytes
from streammoe.columns.layout import Additions, padded
from streammoe.engine.members import KINDS, series_width
from streammoe.engine.products import MOST_FEATURES
from streammoe.model.context import Context


def excess(context: Context, additions: Additions) -> str | None:
    """Return an error message if the model would become too large with these fields and levels."""
    options = context.options
    K, (p_w, p_v) = options.most_experts, context.encoder.widths_with(additions)
    n_rows, n_lags, wide = context.family.n_rows(context.targets.most_outputs), context.n_series_lags, padded(p_v)
    n_singles = options.has_portfolio * sum(kind.sees == "all" for kind in KINDS)
    size = model_bytes(K + n_singles, n_rows, padded(p_w), wide)  # of the largest state, without rows that are kept
    size += model_bytes(1, n_rows, 0, MOST_FEATURES) if options.has_curved else 0
    size += model_bytes(1, n_rows, 0, wide + series_width(context.targets.most_outputs, n_lags)) if n_lags else 0
    if size > MAX_STATE_BYTES:
        return (
            f"a model of {K:,} experts with {p_v:,} features, and {p_w:,} of the gate, would take "
            f"{size / 2**30:,.1f} GiB, and {MAX_STATE_BYTES >> 30} GiB is the most: give fewer features or levels "
            "(max_levels), or lower degree, gate_degree or n_experts"
        )
    buffers = {"warmup": options.warmup or 0, "reservoir": options.reservoir}
    for name, rows in buffers.items():
        size = buffer_bytes(rows, p_w, p_v)
        if size > MAX_BUFFER_BYTES:
            return (
                f"{rows:,} events with {p_v:,} features would take {size / 2**30:,.1f} GiB, and "
                f"{MAX_BUFFER_BYTES >> 30} GiB is the most: lower {name}, degree or gate_degree, or give fewer "
                "features"
            )
    return None
