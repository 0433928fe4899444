"""The demo models: how they are made (corpus, facts, training) and what ships (`models/`)."""
