// Package suggest finds the word that a person meant to type.
package suggest

// Nearest returns the word of known that is nearest to got, or "" when none
// is near enough to be meant.
func Nearest(got string, known []string) string {
	best, at := "", 3
	if len(got) > 64 { // no word
		return ""
	}
	for _, k := range known {
		if d := edits(got, k); d < at && d < len(k) {
			best, at = k, d
		}
	}
	return best
}

// Hint is "did you mean WORD?" with the nearest word of known, or "".
func Hint(got string, known []string) string {
	if near := Nearest(got, known); near != "" {
		return "did you mean " + near + "?"
	}
	return ""
}

// edits counts the single-letter changes that turn a into b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diag, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diag+cost)
		}
	}
	return row[len(b)]
}
