package main

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// subBuckets of each power of two bound the error of a quantile to 1/64, 1.6 %.
const subBuckets = 64

// histogram counts latencies in log-linear buckets of nanoseconds. Adding is safe from all goroutines.
type histogram struct {
	buckets [60 * subBuckets]atomic.Int64
}

func bucketOf(nanoseconds int64) int {
	if nanoseconds < subBuckets {
		return int(max(nanoseconds, 0))
	}
	exponent := bits.Len64(uint64(nanoseconds)) - 1
	return (exponent-5)*subBuckets + int(nanoseconds>>(exponent-6))&(subBuckets-1)
}

// middleOf is the latency in nanoseconds that stands for a bucket.
func middleOf(bucket int) float64 {
	if bucket < subBuckets {
		return float64(bucket)
	}
	return math.Ldexp(1+(float64(bucket%subBuckets)+0.5)/subBuckets, bucket/subBuckets+5)
}

func (h *histogram) add(latency time.Duration) {
	h.buckets[bucketOf(int64(latency))].Add(1)
}

func (h *histogram) merge(other *histogram) {
	for i := range h.buckets {
		h.buckets[i].Add(other.buckets[i].Load())
	}
}

// quantileMs is the latency in milliseconds that `share` of the entries do not exceed; nil when there are none.
func (h *histogram) quantileMs(share float64) *float64 {
	entries := int64(0)
	for i := range h.buckets {
		entries += h.buckets[i].Load()
	}
	rank, seen := int64(math.Ceil(float64(entries)*share)), int64(0)
	for i := range h.buckets {
		if seen += h.buckets[i].Load(); seen >= rank && seen > 0 {
			milliseconds := rounded(middleOf(i) / 1e6)
			return &milliseconds
		}
	}
	return nil
}
