"""Numbers near the ends of the range.

The right value is an ordinary float32 number. A square, a sum or a difference on the way is not.
"""

import math

import torch
import torch.nn.functional as F
from torch.autograd import grad

from tests.reports.report import report


@report("F40.1", "pytorch#193006", kernel=True)
def vector_norm_of_large_numbers():
    """The norm of (1e20, 1e20) is infinite.

    It is 1e20 sqrt(2). torch.hypot gives it.
    """
    x = torch.tensor([1e20, 1e20])
    return torch.linalg.vector_norm(x), torch.hypot(x[0], x[1])


@report("F40.2", kernel=True)
def vector_norm_of_small_numbers():
    """The norm of (1e-30, 1e-30) is 0.

    It is 1e-30 sqrt(2). torch.hypot gives it.
    """
    x = torch.tensor([1e-30, 1e-30])
    return torch.linalg.vector_norm(x), torch.hypot(x[0], x[1])


@report("F40.3", "pytorch#193006", kernel=True)
def normalize_of_large_numbers():
    """F.normalize of (1e20, 1e20) is 0.

    The length 1 is lost, since the norm is infinite. Any positive multiple of (1, 1)
    normalizes to sqrt(1/2).
    """
    return F.normalize(torch.tensor([1e20, 1e20]), dim=0), torch.full((2,), math.sqrt(0.5))


@report("F40.4", "pytorch#51912", kernel=True)
def cosine_similarity_of_large_vectors():
    """cosine_similarity of (1e20, 0) and (1e20, 1e20) is 0.

    The angle between them is 45 degrees.
    """
    return F.cosine_similarity(
        torch.tensor([1e20, 0.0]), torch.tensor([1e20, 1e20]), 0
    ), torch.tensor(math.sqrt(0.5))


@report("F40.5", kernel=True)
def distances_of_large_vectors():
    """cdist, pdist, dist and pairwise_distance of vectors of length 1e20 are infinite.

    The distance of (1e20, 0) and (0, 1e20) is 1e20 sqrt(2).
    """
    x = torch.tensor([[1e20, 0.0], [0.0, 1e20]])
    distances = (
        torch.cdist(x, x)[0, 1],
        F.pdist(x)[0],
        torch.dist(x[0], x[1]),
        F.pairwise_distance(x[:1], x[1:])[0],
    )
    return distances, [torch.tensor(1e20 * math.sqrt(2))] * 4


@report("F40.6", kernel=True)
def gradient_of_a_norm_of_order_3():
    """The gradient of the norm of order 3 is 0 at (1e15, 1e15).

    It is (x / norm)² = 2^(-2/3), whatever the scale. The kernel adds cubes, which overflow.
    """
    x = torch.tensor([1e15, 1e15], requires_grad=True)
    return grad(torch.linalg.vector_norm(x, 3), x)[0], torch.full((2,), 2 ** (-2 / 3))


@report("F40.7", kernel=True)
def renorm_of_large_numbers():
    """renorm of (1e20, 1e20) to length 1 is 0.

    It is (sqrt(1/2), sqrt(1/2)).
    """
    return torch.renorm(torch.tensor([[1e20, 1e20]]), 2, 0, 1.0), torch.full((1, 2), math.sqrt(0.5))


@report("F41.1", kernel=True)
def normalizations_of_large_numbers():
    """layer_norm and batch_norm of (1e20, -1e20) are 0.

    Two opposite numbers normalize to 1 and -1. Their variance overflows.
    """
    x = torch.tensor([1e20, -1e20])
    both = F.layer_norm(x, (2,)), F.batch_norm(x[:, None], None, None, training=True)[:, 0]
    return both, [torch.tensor([1.0, -1.0])] * 2


@report("F41.2", kernel=True)
def rms_norm_of_large_numbers():
    """rms_norm of (1e20, -1e20) is 0.

    The root of the mean square is 1e20. The square overflows.
    """
    return F.rms_norm(torch.tensor([1e20, -1e20]), (2,)), torch.tensor([1.0, -1.0])


@report("F41.3", kernel=True)
def instance_norm_of_numbers_near_10000():
    """instance_norm of (10000, 10001, 10002) is off by 2e-4.

    The mean is 10001 and the variance 2/3, exactly. layer_norm gives the right value.
    """
    x = torch.tensor([10000.0, 10001.0, 10002.0])
    return F.instance_norm(x[None, None])[0, 0], F.layer_norm(x, (3,))


@report("F41.4", kernel=True)
def variance_of_large_close_numbers():
    """The variance of (1e8, 1e8 + 8, 1e8 + 16) is 160.

    The three are float32 numbers, and so is their mean. The variance is 64.
    """
    return torch.tensor([1e8, 1e8 + 8, 1e8 + 16]).var(), torch.tensor(64.0)


@report("F41.5", kernel=True)
def distances_of_close_points():
    """cdist of 30 points and their neighbours at distance 0.01 is 0.

    From 26 points on it computes |x|² + |y|² - 2xy, which cancels. Fewer points get
    the right distance.
    """
    x = torch.full((30, 2), 1000.0)
    y = x + torch.tensor([0.01, 0.0])
    return torch.cdist(x, y)[0], torch.cdist(x[:1], y[:1])[0].expand(30)


@report("F42.1", "pytorch#44350", kernel=True)
def mean_of_large_numbers():
    """The mean of two times 3e38 is infinite; so is avg_pool1d.

    It is 3e38. The sum overflows.
    """
    x = torch.tensor([3e38, 3e38])
    return [x.mean(), F.avg_pool1d(x[None], 2)[0, 0]], [torch.tensor(3e38)] * 2


@report("F42.2", kernel=True)
def linspace_over_the_whole_range():
    """linspace from -3e38 to 3e38 is NaN at its ends.

    It starts at -3e38 and ends at 3e38. The step overflows.
    """
    return torch.linspace(-3e38, 3e38, 3), torch.tensor([-3e38, 0.0, 3e38])


@report("F42.3", kernel=True)
def lerp_over_the_whole_range():
    """lerp half way from -3e38 to 3e38 is minus infinity, and so is the median by quantile.

    It is 0. The difference of the ends overflows.
    """
    x = torch.tensor([-3e38, 3e38])
    return [torch.lerp(x[0], x[1], 0.5), torch.quantile(x, 0.5)], [torch.tensor(0.0)] * 2


@report("F40.8", "pytorch#184036", kernel=True)
def distance_of_a_high_order():
    """pairwise_distance of order 100 of points at distance 3 is infinite.

    It is between the largest difference, 3, and 3 times the hundredth root of 2.
    """
    x, y = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    return F.pairwise_distance(x, y, p=100.0), torch.tensor([3 * 2**0.01])
