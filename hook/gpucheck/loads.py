"""loads: answers requests one after the other, as an instance of a model does.

loads.py LOAD SECONDS FOLDER   makes a file in the folder when it is warm, begins when
                               there is one called go, and prints LOAD and how many
                               requests a second it answered

LOAD is resnet (ResNet-50, an image), bert (BERT base, 128 tokens), rnnt (an LSTM
encoder over 100 frames and a decoder by steps, like RNN-T) or gnmt (LSTMs with
attention that translate 25 words, like GNMT): what FaST-GShare measured (section 5.1),
with weights drawn at random, since only their time is looked at.
"""
import os
import sys
import time

import torch
from torch import nn

DEVICE = os.environ.get("LOADS_DEVICE", "cuda")


class Bottleneck(nn.Module):
    def __init__(self, inward, width, stride):
        super().__init__()
        outward = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inward, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outward, 1, bias=False), nn.BatchNorm2d(outward))
        self.skip = nn.Identity()
        if stride != 1 or inward != outward:
            self.skip = nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def resnet():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inward = 64
    for width, blocks, stride in (64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2):
        for i in range(blocks):
            layers.append(Bottleneck(inward, width, stride if i == 0 else 1))
            inward = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, 1000)]
    return nn.Sequential(*layers), torch.randn(1, 3, 224, 224)


def bert():
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), torch.randn(1, 128, 768)


class Transducer(nn.Module):
    """Every frame is decoded into one symbol, each from the one before."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(240, 1024, 5)
        self.decoder = nn.LSTMCell(320, 320)
        self.joint = nn.Linear(1024 + 320, 29)
        self.embedding = nn.Embedding(29, 320)

    def forward(self, frames):
        heard, _ = self.encoder(frames)
        symbol = torch.zeros(1, dtype=torch.long, device=frames.device)
        state = None
        for frame in heard:
            state = self.decoder(self.embedding(symbol), state)
            symbol = self.joint(torch.cat((frame, state[0]), 1)).argmax(1)
        return symbol


def rnnt():
    return Transducer(), torch.randn(100, 1, 240)


class Translator(nn.Module):
    """The encoder reads a sentence; the decoder then makes one word from the one before."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(1024, 1024, 8)
        self.decoder = nn.LSTM(1024, 1024, 8)
        self.vocabulary = nn.Linear(2048, 32000)
        self.embedding = nn.Embedding(32000, 1024)

    def forward(self, sentence):
        memory, state = self.encoder(sentence)
        word = torch.zeros(1, 1, dtype=torch.long, device=sentence.device)
        for _ in range(len(sentence)):
            step, state = self.decoder(self.embedding(word), state)
            weights = torch.softmax((memory * step).sum(2, keepdim=True), 0)
            context = (weights * memory).sum(0, keepdim=True)
            word = self.vocabulary(torch.cat((step, context), 2)).argmax(2)
        return word


def gnmt():
    return Translator(), torch.randn(25, 1, 1024)


def main(load, seconds, folder):
    torch.backends.cudnn.benchmark = False
    model, x = {"resnet": resnet, "bert": bert, "rnnt": rnnt, "gnmt": gnmt}[load]()
    model, x = model.to(DEVICE).eval(), x.to(DEVICE)
    with torch.inference_mode():
        for _ in range(5):
            model(x).sum().item()
        with open(os.path.join(folder, f"warm.{os.getpid()}"), "w"):
            pass
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.005)
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            model(x).sum().item()  # the answer is on the host
            done += 1
    print(f"{load} {done / (time.monotonic() - began):.2f}")


main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
