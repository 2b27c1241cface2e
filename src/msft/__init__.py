"""mSFT: multi-task fine-tuning in which every sub-dataset stops where it stops improving."""

__version__ = "0.1.0"
