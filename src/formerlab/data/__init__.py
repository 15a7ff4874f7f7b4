"""Data: prepare text, sentence pairs or images as memory-mapped files with a manifest."""

from formerlab.data.dataset import prepare as prepare
from formerlab.data.dataset import source_fingerprint as source_fingerprint
from formerlab.data.manifest import verify as verify
from formerlab.data.text.embedded import Embedded as Embedded
from formerlab.data.text.files import Files as Files
from formerlab.data.text.files import Hub as Hub
from formerlab.data.text.prepare import TextData as TextData
from formerlab.data.text.streams import load_stream as load_stream
from formerlab.data.text.streams import load_tokenizer as load_tokenizer
from formerlab.data.text.tokenizer import BytePairs as BytePairs
from formerlab.data.text.tokenizer import TokenizerFile as TokenizerFile
from formerlab.data.text.tokenizer import TokenizerOf as TokenizerOf
