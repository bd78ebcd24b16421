"""Fast decoders of plain messages, equal to the models in their answers."""
