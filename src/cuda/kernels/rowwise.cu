/* The maps whose results are rows of queries: a block owns queries and walks over the keys.
 *
 *     forward     Z = Q K^T                                              O += R V
 *     jvp         Z, tZ = tQ K^T + Q tK^T                                O += R V, tO += tR V + R tV
 *     jvp_given   the same, given O and L                                tO += tR V + R tV
 *     jvp_jvp     Z, tZ, sZ = sQ K^T + Q sK^T, stZ = tQ sK^T + sQ tK^T   stO += (R o W) V + tR sV + sR tV
 *
 * forward and jvp find the row's maximum and sum on the way (the online softmax); the other two are given L. */
#include "cuda/kernels/given.cuh"
#include "cuda/kernels/instances.cuh"
#include "cuda/kernels/online.cuh"

template <class T> struct decode : one_split<T> {
    typedef decode_map map;
};
template <class T> struct forward_short : online<T, false> {
    typedef forward_map map;
};

template <class T> struct forward : online<T, false> {
    typedef forward_map map;
};
template <class T> struct jvp : online<T, true> {
    typedef jvp_map map;
};
template <class T> struct jvp_given : given<T> {
    typedef jvp_given_map map;
};
template <class T> struct jvp_jvp : second<T> {
    typedef jvp_jvp_map map;
};

AGI_INSTANCES_OF(AGI_CUDA_ROWWISE, AGI_FORMAT)
