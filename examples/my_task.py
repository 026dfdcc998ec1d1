# doubletime train examples/my_task.py -n 2
"""A task: what to train, in one class. `doubletime train` does the rest."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import doubletime as dt


class HandwrittenDigits(dt.Task):
    """1,797 images of 8 x 8 pixels: every fifth to test, the others to train."""

    global_batch = 64
    epochs = 8

    def __init__(self):
        digits = load_digits()
        self.images = torch.tensor(digits.images / 16, dtype=torch.float32)
        self.labels = torch.tensor(digits.target)
        self.is_test = torch.arange(len(self.labels)) % 5 == 0

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def train_data(self):
        return self.images[~self.is_test], self.labels[~self.is_test]

    def test_data(self):
        return self.images[self.is_test], self.labels[self.is_test]

    # Cross-entropy, accuracy and SGD with momentum are what a task does unless it says otherwise:

    def loss(self, model, batch):
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=0.05)

    def optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=3e-3)
