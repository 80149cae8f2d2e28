"""Reads GLUE's RTE and turns it into features."""

import csv
import os


class InputExample:
    def __init__(self, guid, text_a, text_b, label):
        self.guid = guid
        self.text_a = text_a
        self.text_b = text_b
        self.label = label


class InputFeatures:
    def __init__(self, input_ids, input_mask, segment_ids, label_id):
        self.input_ids = input_ids
        self.input_mask = input_mask
        self.segment_ids = segment_ids
        self.label_id = label_id


class RteProcessor:
    labels = ("entailment", "not_entailment")

    def get_examples(self, data_dir, split):
        with open(os.path.join(data_dir, split + ".tsv"), encoding="utf-8-sig") as file:
            lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return [
            InputExample(f"{split}-{line[0]}", line[1], line[2], line[-1]) for line in lines[1:]
        ]


def convert_examples_to_features(examples, labels, max_seq_length, tokenizer):
    numbers = {label: number for number, label in enumerate(labels)}
    features = []
    for example in examples:
        a, b = tokenizer.tokenize(example.text_a), tokenizer.tokenize(example.text_b)
        while len(a) + len(b) > max_seq_length - 3:
            longer = a if len(a) > len(b) else b
            longer.pop()
        ids = tokenizer.convert_tokens_to_ids(["[CLS]", *a, "[SEP]", *b, "[SEP]"])
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        padding = [0] * (max_seq_length - len(ids))
        mask = [1] * len(ids) + padding
        features.append(
            InputFeatures(ids + padding, mask, segments + padding, numbers[example.label])
        )
    return features
