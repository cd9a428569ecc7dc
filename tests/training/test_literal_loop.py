"""The loop against a literal one: plain Python, one thing after the other."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from codecl.randomness import generator, seeded
from tests.marks import slow_but
from tests.training.small import PLAN, assert_same_bits, differ, literal_evaluation, network, small_stream, train


def literal_epoch(model, part, plan, task, epoch, lr, momenta):
    order = torch.randperm(len(part.labels), generator=generator(plan.seed, "order", task, epoch)).tolist()
    model.train()
    with seeded(plan.seed, "dropout", task, epoch):
        for begin in range(0, len(order), plan.batch_size):
            chosen = order[begin : begin + plan.batch_size]
            if plan.rule == "annealed":
                lr = literal_annealing(plan, epoch, begin // plan.batch_size, -(-len(order) // plan.batch_size))
            for parameter in model.parameters():
                parameter.grad = None
            F.cross_entropy(model(part.inputs[chosen]), part.labels[chosen]).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is None:  # the head of another task
                        continue
                    step = gradient = parameter.grad.add(parameter, alpha=plan.weight_decay)
                    if plan.momentum:
                        if parameter in momenta:
                            step = momenta[parameter].mul(plan.momentum).add(gradient)
                        momenta[parameter] = step
                    if plan.nesterov:
                        step = gradient.add(step, alpha=plan.momentum)
                    parameter.add_(step, alpha=-lr)
    return lr


def literal_annealing(plan, epoch, batch, batches):
    """The rate of a step: a line up to ``lr``, then half a cosine down to 0."""
    k, steps = epoch * batches + batch, plan.epochs * batches
    w = round(plan.warm_up * steps)
    return plan.lr * ((k + 1) / w) if k < w else plan.lr / 2 * (1 + math.cos(math.pi * (k - w) / (steps - w)))


def literal_training(stream, plan):
    """Fine-tuning: the accuracy matrix, the final weights, and the learning rate of every epoch of every task."""
    model, matrix, rates = network(plan.seed), [], []
    for t, task in enumerate(stream.tasks):
        if t > 0:
            with seeded(plan.seed, "init", t):
                model.select(t)
        lr, book, best, bad, kept, momenta = plan.lr, plan.lr, None, 0, None, {}
        rates.append([])
        for epoch in range(plan.epochs):
            rates[-1].append(literal_epoch(model, task.train, plan, t, epoch, lr, momenta))
            loss, accuracy = literal_evaluation(model, task.validation, plan)
            score = -loss if plan.rule == "loss" else accuracy
            if plan.rule == "annealed":
                if plan.keep == "last" or best is None or score >= best:
                    best, kept = score, {name: value.clone() for name, value in model.state_dict().items()}
                continue
            if not plan.restore:
                kept = {name: value.clone() for name, value in model.state_dict().items()}
            if best is None or score > best:
                best, bad = score, 0
                kept = {name: value.clone() for name, value in model.state_dict().items()}
                continue
            bad += 1
            if plan.rule == "loss" and bad == plan.patience:
                lr, bad = lr / plan.factor, 0
                if lr < plan.min_lr:
                    break
            elif plan.rule == "accuracy" and bad == plan.patience + 1:
                lr, book, bad = lr / plan.decay, book / plan.factor, 0
            elif plan.rule == "accuracy" and book < plan.min_lr:
                break
        model.load_state_dict(kept)
        row = []
        for seen in range(len(stream)):
            if seen <= t:
                model.select(seen)
                row.append(literal_evaluation(model, stream.tasks[seen].test, plan)[1])
            else:
                row.append(None)
        model.select(t)
        matrix.append(row)
    return matrix, model.state_dict(), rates


PLANS = {
    "loss": PLAN,
    "accuracy": replace(PLAN, rule="accuracy", factor=3.0, decay=1.5, min_lr=0.2),
    "accuracy, the last": replace(PLAN, rule="accuracy", factor=3.0, decay=1.5, min_lr=0.2, restore=False),
    "momentum": replace(PLAN, lr=0.1, min_lr=0.01, momentum=0.9),
    "weight decay": replace(PLAN, weight_decay=0.05, epochs=3),
    "annealed": replace(PLAN, rule="annealed", epochs=4),
    "annealed, without warm-up": replace(PLAN, rule="annealed", epochs=2, warm_up=0.0),
    "annealed, the best": replace(PLAN, rule="annealed", keep="best"),
    "annealed, all of SGD": replace(
        PLAN, rule="annealed", lr=0.1, epochs=3, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "all epochs": replace(PLAN, patience=50, epochs=4),
    "one batch": replace(PLAN, batch_size=1000, evaluation_batch=1000, epochs=2),
}


@pytest.mark.parametrize("name", slow_but(PLANS, "loss", "accuracy", "annealed, all of SGD", "one batch"))
def test_fine_tuning_is_the_literal_loop_bit_for_bit(name):
    rates, plan = [], PLANS[name]
    trainer = train(
        plan=plan, observers=(lambda e: rates.append((e["task"], e["lr"])) if e["event"] == "epoch" else 0,)
    )
    matrix, weights, expected = literal_training(small_stream(), plan)
    assert trainer.progress.accuracy == matrix
    assert_same_bits(trainer.model.state_dict(), weights)
    assert rates == [(t, lr) for t, of in enumerate(expected) for lr in of]
    assert trainer.progress.epochs == [len(of) for of in expected]


def test_the_plans_above_stop_early_and_decay():
    for name in ("loss", "accuracy"):
        rates = literal_training(small_stream(), PLANS[name])[2]
        assert any(len(of) < PLAN.epochs for of in rates), name
        assert any(len(set(of)) > 1 for of in rates), name


@pytest.mark.parametrize(
    ("best", "last"),
    [(PLANS["annealed, the best"], {"keep": "last"}), (PLANS["accuracy"], {"restore": False})],
)
def test_the_best_epoch_is_not_the_last(best, last):
    one, other = (literal_training(small_stream(), plan)[1] for plan in (best, replace(best, **last)))
    assert differ(one, other)
