"""Curates, samples, grades, learns, evaluates, reports. Never imports webapp or Django; of sandbox only its client."""
