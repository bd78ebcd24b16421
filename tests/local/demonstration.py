"""The demonstration's settings, as a base for tests of the local run."""

from __future__ import annotations

from pathlib import Path

from schemas.settings.root import Settings, TrafficSettings, load_settings

HOME = Path(__file__).resolve().parents[2]
NOW = 1_763_660_000.0


def traffic_settings(**changed: object) -> TrafficSettings:
    """The demonstration's traffic, with changes."""
    base = {
        "seed": 7,
        "topics": 6,
        "namespace": "acme/shop",
        "demand": "waves",
        "load": "generated",
        "report_seconds": 1,
        "peak_msg_rate_in": 30_000,
        "wave_seconds": 90,
        "burst_seconds": 40,
        "max_consumers": 6,
        "consumer_seconds": 20,
        "from_start": False,
    }
    return TrafficSettings.model_validate({**base, **changed})


def local_settings(home: Path, bootstrap: str = "127.0.0.1:1") -> Settings:
    """The demonstration's settings in another home; by default without a broker."""
    loaded = load_settings([HOME / "conf" / "demonstration.toml"], HOME, {"ANABRANCH_KAFKA_BOOTSTRAP": bootstrap})
    return loaded.model_copy(update={"home": home})
