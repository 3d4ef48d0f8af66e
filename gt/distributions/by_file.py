"""PyTorch's files of distributions, by which scripts import them: `from gt.distributions.normal import Normal`."""

FILES = {
    "bernoulli": "Bernoulli", "beta": "Beta", "binomial": "Binomial", "categorical": "Categorical", "cauchy": "Cauchy",
    "chi2": "Chi2", "dirichlet": "Dirichlet", "exponential": "Exponential", "gamma": "Gamma", "geometric": "Geometric",
    "gumbel": "Gumbel", "half_cauchy": "HalfCauchy", "half_normal": "HalfNormal", "independent": "Independent",
    "laplace": "Laplace", "log_normal": "LogNormal", "mixture_same_family": "MixtureSameFamily", "multinomial": "Multinomial",
    "multivariate_normal": "MultivariateNormal", "normal": "Normal", "one_hot_categorical": "OneHotCategorical",
    "pareto": "Pareto", "poisson": "Poisson", "relaxed_bernoulli": "RelaxedBernoulli",
    "relaxed_categorical": "RelaxedOneHotCategorical", "studentT": "StudentT",
    "continuous_bernoulli": "ContinuousBernoulli", "exp_family": "ExponentialFamily", "fishersnedecor": "FisherSnedecor",
    "generalized_pareto": "GeneralizedPareto", "inverse_gamma": "InverseGamma", "kumaraswamy": "Kumaraswamy",
    "lkj_cholesky": "LKJCholesky", "logistic_normal": "LogisticNormal",
    "lowrank_multivariate_normal": "LowRankMultivariateNormal", "negative_binomial": "NegativeBinomial", "wishart": "Wishart",
    "transformed_distribution": "TransformedDistribution", "uniform": "Uniform", "von_mises": "VonMises", "weibull": "Weibull",
}  # fmt: skip
