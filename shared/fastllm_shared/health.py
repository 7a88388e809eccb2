"""What a proxy reports about itself: `POST /health-report`, JSON, every `--health-report-interval`.

Reports are kept per replica and never merged. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

EjectionPath = Literal["probe", "traffic"]
EjectionReason = Literal["timeout", "refused", "reset", "status", "body_stalled", "frozen", "credential"]


class Ejection(msgspec.Struct, frozen=True):
    """Why a replica keeps a backend out, and until when (`None`: until a probe passes)."""

    path: EjectionPath
    reason: EjectionReason
    until: float | None = None


class GateView(msgspec.Struct, frozen=True):
    """A backend's flow control on this replica; absent when it is off."""

    ceiling: int
    in_use: int
    queued: int


class BackendView(msgspec.Struct, frozen=True):
    backend_id: str
    provider: str
    model: str
    healthy: bool
    inflight: int
    ejected: Ejection | None = None
    gate: GateView | None = None


class UsageCounters(msgspec.Struct, frozen=True):
    """`served = stored + queued + spooled + dropped`, counted since the replica started."""

    served: int = 0
    stored: int = 0
    queued: int = 0
    spooled: int = 0
    dropped: int = 0


class LoopView(msgspec.Struct, frozen=True):
    """One supervised loop: when it last completed a turn, how often it should, how often it raised."""

    last_turn_at: float | None
    interval_seconds: float
    failures: int = 0


class HealthReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`snapshot_version` is 0 before the first snapshot. `unattributed` counts rejections that belong
    to no authenticated caller since the last report, by reason."""

    replica: str
    host: str
    version: str
    started_at: float
    snapshot_version: int
    config_poll_seconds: float
    health_report_interval_seconds: float
    draining: bool = False
    backends: tuple[BackendView, ...] = ()
    usage: UsageCounters = UsageCounters()
    loops: dict[str, LoopView] = {}
    unattributed: dict[str, int] = {}


encode_report = msgspec.json.Encoder().encode
decode_report = msgspec.json.Decoder(HealthReport).decode
