package main

import (
	"math"
	"testing"
	"time"
)

func TestQuantilesAreWithinABucketOfTheTruth(t *testing.T) {
	var h histogram
	for us := 1; us <= 100_000; us++ {
		h.add(time.Duration(us) * time.Microsecond)
	}
	for share, ms := range map[float64]float64{0.5: 50, 0.99: 99, 0.999: 99.9, 1: 100} {
		if got := h.quantileMs(share); math.Abs(*got-ms)/ms > 1.0/subBuckets {
			t.Errorf("quantile %v: %v ms, want %v", share, *got, ms)
		}
	}
}

func TestBucketsRiseAndHoldEveryLatency(t *testing.T) {
	last := -1
	for _, ns := range []int64{0, 1, 63, 64, 65, 127, 128, 1 << 20, 1 << 40, math.MaxInt64} {
		bucket := bucketOf(ns)
		if bucket <= last || bucket >= len((&histogram{}).buckets) {
			t.Fatalf("%d ns falls into bucket %d after %d", ns, bucket, last)
		}
		last = bucket
	}
	if (&histogram{}).quantileMs(0.5) != nil {
		t.Error("no entries have no latency")
	}
}
