"""Objects built of valid values without validation."""

from __future__ import annotations

from schemas.base import construct_model
from schemas.bundles import BundleSnapshot


def test_fields_without_a_value_get_defaults_of_their_own() -> None:
    values = {"cluster": "west", "now": 1, "ownership": {"acme/shop/0x00_0x10": "b:1"}}
    one, other = construct_model(BundleSnapshot, values), construct_model(BundleSnapshot, values)
    assert one == BundleSnapshot.model_validate(values)
    defaults = {name for name, field in BundleSnapshot.model_fields.items() if field.default_factory is not None}
    assert {"brokers", "configuration", "assign"} <= defaults
    assert all(getattr(one, name) is not getattr(other, name) for name in defaults)
