// Package main adds in goroutines.
package main

import (
	"fmt"
	"sync"
)

func sum(n int) int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	total := 0
	for i := 1; i <= n; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			mu.Lock()
			total += i
			mu.Unlock()
		}(i)
	}
	wg.Wait()
	return total
}

func main() { fmt.Println("sum", sum(100)) }
