"""Other libraries: transformers and timm learn our models here, and we theirs."""
