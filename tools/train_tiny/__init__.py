"""Trains the bundled tiny model. Order: vocabulary, prepare, teacher, train, export, evaluate."""
