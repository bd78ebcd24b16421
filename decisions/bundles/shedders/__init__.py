"""The shedders of the modular load manager and of the extensible one.

Those of the modular manager answer broker to bundles, in the order in which they were picked.
"""
