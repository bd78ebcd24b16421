"""The version that every decision row carries: it moves when the same snapshot could be decided differently."""

ENGINE_VERSION = "1"
