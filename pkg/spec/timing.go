package spec

import "time"

// Timing is what a run makes of the times that its tasks ask for, one for each
// phase, as Harbor has it: the task's time or Override, at most Max, times
// Multiplier. 0 is not given.
type Timing struct {
	Override, Max time.Duration
	Multiplier    float64
}

// Of is the time of a phase for which a task asks for d; 0 is no limit. Unlike
// Harbor's, a Max holds for tasks without a limit too.
func (t Timing) Of(d time.Duration) time.Duration {
	if t.Override > 0 {
		d = t.Override
	}
	if t.Max > 0 && (d == 0 || d > t.Max) {
		d = t.Max
	}
	if t.Multiplier > 0 {
		d = time.Duration(min(float64(d)*t.Multiplier, float64(1<<62)))
	}
	return d
}
