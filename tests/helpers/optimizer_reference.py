"""AdamW, LAMB and LANS in numpy, as their papers write them, for tests of updates."""

import numpy as np

SHAPES = {
    "bert/embeddings/word_embeddings": (7, 4),
    "layer_0/dense/kernel": (4, 3),
    "layer_0/dense/bias": (3,),
    "layer_0/LayerNorm/gamma": (4,),
    "layer_0/LayerNorm/beta": (4,),
    "cls/seq_relationship/output_bias": (2,),
}
DECAYING = {"bert/embeddings/word_embeddings", "layer_0/dense/kernel"}
FACTORS = {"layer_0/dense/kernel": 0.3, "layer_0/LayerNorm/gamma": 0.3, "layer_0/dense/bias": 2.0}
FROZEN = {"bert/embeddings/word_embeddings", "layer_0/LayerNorm/beta"}
EPSILON, DECAY = 1e-6, 0.01


def rate_factor(name):
    """Some variables have a different rate, some are frozen."""
    return 0.0 if name in FROZEN else FACTORS.get(name, 1.0)


class Reference:
    """One optimizer in numpy, as its paper writes it."""

    def __init__(
        self,
        weights,
        *,
        lamb=False,
        lans=False,
        prenormalize=False,
        bias_correction=False,
        bounds=(0, np.inf),
        betas=(0.9, 0.999),
        adapted=DECAYING,
        rate_factor=lambda name: 1.0,
    ):
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self.lamb, self.lans, self.prenormalize = lamb, lans, prenormalize
        self.bias_correction, self.bounds, self.adapted = bias_correction, bounds, adapted
        self.betas, self.rate_factor = betas, rate_factor
        self.updates = 0

    def apply(self, gradients, rate):
        """One update by gradients of any type, after clipping."""
        self.updates += 1
        gradients = {
            name: np.asarray(gradient, np.float64)
            for name, gradient in gradients.items()
            if self.rate_factor(name) != 0
        }
        if self.prenormalize:
            norm = global_norm(gradients)
            gradients = {name: gradient / norm for name, gradient in gradients.items()}
        for name, gradient in gradients.items():
            step = self.step(name, gradient)
            self.weights[name] = self.weights[name] - rate * self.rate_factor(name) * step

    def step(self, name, gradient):
        beta_1, beta_2 = self.betas
        if self.lans:
            gradient = gradient / np.linalg.norm(gradient)
        m = self.m[name] = beta_1 * self.m[name] + (1 - beta_1) * gradient
        v = self.v[name] = beta_2 * self.v[name] + (1 - beta_2) * gradient**2
        if self.bias_correction:
            m, v = m / (1 - beta_1**self.updates), v / (1 - beta_2**self.updates)
        of_momentum = self.direction(name, m / (np.sqrt(v) + EPSILON))
        if not self.lans:
            return of_momentum
        of_gradient = self.direction(name, gradient / (np.sqrt(v) + EPSILON))
        return beta_1 * of_momentum + (1 - beta_1) * of_gradient

    def direction(self, name, update):
        """Adam's direction with decay and trust ratio."""
        weight = self.weights[name]
        if name in DECAYING:
            update = update + DECAY * weight
        if (self.lamb or self.lans) and name in self.adapted:
            update = update * self.trust_ratio(weight, update)
        return update

    def trust_ratio(self, weight, update):
        weight_norm, update_norm = np.linalg.norm(weight), np.linalg.norm(update)
        if weight_norm == 0 or update_norm == 0:
            return 1.0
        return np.clip(weight_norm / update_norm, *self.bounds)


def start_values(seed=0):
    rng = np.random.RandomState(seed)
    return {name: rng.randn(*shape).astype(np.float32) for name, shape in SHAPES.items()}


def global_norm(gradients):
    return np.sqrt(sum((np.asarray(g, np.float64) ** 2).sum() for g in gradients.values()))


def random_gradients(rng):
    """Sizes differ by variable and by step, as they do in training."""
    return {
        name: (rng.randn(*shape) * 10 ** rng.uniform(-3, 1)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


ALL = set(SHAPES)
LAMB = {"lamb": True, "bias_correction": True}
LANS = {"lans": True, "bias_correction": True}

CASES = {
    "AdamW as google's": ("adam", {}, {}, None),
    "AdamW with bias correction": ("adam", {"bias_correction": True}, {"bias_correction": True}, 1),
    "AdamW with other betas": (
        "adam",
        {"bias_correction": True, "beta_1": 0.875, "beta_2": 0.984375},
        {"bias_correction": True, "betas": (0.875, 0.984375)},
        None,
    ),
    "LAMB": ("lamb", {}, {"lamb": True, "bias_correction": True}, None),
    "LAMB with bounds and clip": (
        "lamb",
        {"min_trust_ratio": 0.5, "max_trust_ratio": 0.8},
        {"lamb": True, "bias_correction": True, "bounds": (0.5, 0.8)},
        1.0,
    ),
    "LAMB without bias correction": ("lamb", {"bias_correction": False}, {"lamb": True}, None),
    "LAMB with an upper bound": (
        "lamb",
        {"max_trust_ratio": 0.6},
        {"lamb": True, "bias_correction": True, "bounds": (0, 0.6)},
        None,
    ),
    "AdamW with factors": (
        "adam",
        {"bias_correction": True, "rate_factor": rate_factor},
        {"bias_correction": True, "rate_factor": rate_factor},
        1.0,
    ),
    "LAMB with factors": (
        "lamb",
        {"rate_factor": rate_factor, "min_trust_ratio": 0.5},
        {
            "lamb": True,
            "bias_correction": True,
            "bounds": (0.5, np.inf),
            "rate_factor": rate_factor,
        },
        None,
    ),
    "LAMB with normalised gradients": (
        "lamb",
        {"prenormalize": True},
        {**LAMB, "prenormalize": True},
        None,
    ),
    "LAMB with normalised gradients and factors": (
        "lamb",
        {"prenormalize": True, "rate_factor": rate_factor},
        {**LAMB, "prenormalize": True, "rate_factor": rate_factor},
        None,
    ),
    "LAMB with normalised gradients, bounds and exclusions": (
        "lamb",
        {
            "prenormalize": True,
            "exclude_from_layer_adaptation": "bias$",
            "min_trust_ratio": 0.5,
            "max_trust_ratio": 0.8,
        },
        {
            **LAMB,
            "prenormalize": True,
            "adapted": {name for name in ALL if name[-4:] != "bias"},
            "bounds": (0.5, 0.8),
        },
        None,
    ),
    "LAMB that adapts all": (
        "lamb",
        {"exclude_from_layer_adaptation": ""},
        {**LAMB, "adapted": ALL},
        None,
    ),
    "LAMB with exclusions": (
        "lamb",
        {"exclude_from_layer_adaptation": "^bert/,bias$", "max_trust_ratio": 0.6},
        {
            **LAMB,
            "adapted": ALL - {name for name in ALL if name[:5] == "bert/" or name[-4:] == "bias"},
            "bounds": (0, 0.6),
        },
        1.0,
    ),
    "LANS": ("lans", {}, LANS, None),
    "LANS without bias correction, with clip": (
        "lans",
        {"bias_correction": False},
        {"lans": True},
        1.0,
    ),
    "LANS with bounds that adapts all": (
        "lans",
        {
            "exclude_from_layer_adaptation": "",
            "min_trust_ratio": 0.5,
            "max_trust_ratio": 0.8,
            "beta_1": 0.875,
            "beta_2": 0.984375,
        },
        {**LANS, "adapted": ALL, "bounds": (0.5, 0.8), "betas": (0.875, 0.984375)},
        None,
    ),
    "LANS with factors and exclusions": (
        "lans",
        {"exclude_from_layer_adaptation": "dense", "rate_factor": rate_factor},
        {
            **LANS,
            "adapted": {name for name in ALL if "dense" not in name},
            "rate_factor": rate_factor,
        },
        None,
    ),
}
