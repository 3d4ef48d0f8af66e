"""Probability distributions, as `torch.distributions` has them: samples with and without gradients, densities, divergences.

Random numbers are the session's (`gt.manual_seed`) and the same on every engine; they are not PyTorch's."""

from gt.distributions import constraints, kl, transforms
from gt.distributions.classes import Categorical, Multinomial, OneHotCategorical, OneHotCategoricalStraightThrough
from gt.distributions.composed_transforms import (
    CatTransform,
    ComposeTransform,
    IndependentTransform,
    ReshapeTransform,
    StackTransform,
    identity_transform,
)
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
from gt.distributions.elementwise_transforms import (
    AbsTransform,
    AffineTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
    Transform,
)
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
from gt.distributions.vector_transforms import (
    CorrCholeskyTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    SoftmaxTransform,
    StickBreakingTransform,
)

__all__ = ["AbsTransform", "AffineTransform", "Bernoulli", "Beta", "Binomial", "CatTransform", "Categorical", "Cauchy",
           "Chi2", "ComposeTransform", "ContinuousBernoulli", "CorrCholeskyTransform", "CumulativeDistributionTransform",
           "Dirichlet", "Distribution", "ExpTransform", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma",
           "GeneralizedPareto", "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "IndependentTransform",
           "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace", "LogNormal", "LogisticNormal",
           "LowRankMultivariateNormal", "LowerCholeskyTransform", "MixtureSameFamily", "Multinomial",
           "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical", "OneHotCategoricalStraightThrough",
           "Pareto", "Poisson", "PositiveDefiniteTransform", "PowerTransform", "RelaxedBernoulli",
           "RelaxedOneHotCategorical", "ReshapeTransform", "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform",
           "StackTransform", "StickBreakingTransform", "StudentT", "TanhTransform", "Transform",
           "TransformedDistribution", "Uniform", "VonMises", "Weibull", "Wishart", "biject_to", "constraints",
           "identity_transform", "kl", "kl_divergence", "register_kl", "transform_to", "transforms"]  # fmt: skip
