"""Probability distributions, as `torch.distributions` has them: samples with and without gradients, densities, divergences.

Random numbers are the session's (`gt.manual_seed`) and the same on every engine; they are not PyTorch's."""

from gt.distributions import constraints, kl, transforms
from gt.distributions.by_file import FILES
from gt.distributions.classes import Categorical, Multinomial, OneHotCategorical, OneHotCategoricalStraightThrough
from gt.distributions.composite import (
    HalfCauchy,
    HalfNormal,
    Independent,
    LogisticNormal,
    LogNormal,
    MixtureSameFamily,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    TransformedDistribution,
)
from gt.distributions.discrete import (
    Bernoulli,
    Binomial,
    ContinuousBernoulli,
    Geometric,
    NegativeBinomial,
    Poisson,
)
from gt.distributions.distribution import Distribution, ExponentialFamily
from gt.distributions.kl import kl_divergence, register_kl
from gt.distributions.multivariate import Dirichlet, LKJCholesky, LowRankMultivariateNormal, MultivariateNormal, Wishart
from gt.distributions.positive import (
    Beta,
    Chi2,
    Exponential,
    FisherSnedecor,
    Gamma,
    GeneralizedPareto,
    InverseGamma,
    Kumaraswamy,
    Pareto,
    Weibull,
)
from gt.distributions.real_line import Cauchy, Gumbel, Laplace, Normal, StudentT, Uniform, VonMises
from gt.distributions.registry import biject_to, transform_to
from gt.distributions.transforms import *  # noqa: F403 (all that it names)
from gt.import_paths import add_files

__all__ = [
    *transforms.__all__,
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ContinuousBernoulli", "Dirichlet",
    "Distribution", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma", "GeneralizedPareto", "Geometric",
    "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace",
    "LogNormal", "LogisticNormal", "LowRankMultivariateNormal", "MixtureSameFamily", "Multinomial",
    "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough",
    "Pareto", "Poisson", "RelaxedBernoulli", "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution",
    "Uniform", "VonMises", "Weibull", "Wishart", "biject_to", "constraints", "kl", "kl_divergence", "register_kl",
    "transform_to", "transforms",
]  # fmt: skip

add_files(globals(), FILES)
