"""Recipe of the tiny pair: a Qwen3 target and its DFlash drafter, trained from scratch on one CPU thread."""
