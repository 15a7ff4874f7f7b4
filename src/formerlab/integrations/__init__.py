"""Other libraries: our models in transformers and timm, and their models here."""
