"""The shedders of the modular load manager and of the extensible one.

Those of the modular manager answer broker to bundles, in the order in which they were picked.
`decisions.bundles.configuration` lists the names that a setting may have, `decisions.bundles.shedding` has the modular
manager's shedder of each name, and `decisions.bundles.decide` calls `transfer` and `gain`.
"""
