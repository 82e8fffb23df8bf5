// Serve is a model's server by hand, to try rollout without a model: what it
// has the "model" type are its arguments, one a turn, and then it is done.
//
//	go run ./test/modelserver/serve 'ls -la' 'echo 42 >answer' &
//	rollout run tasks --sif-cache cache --agent terminus --api-base http://127.0.0.1:8000/v1 --out try
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"

	"fence/test/modelserver"
)

func main() {
	const at = "127.0.0.1:8000"
	fmt.Println("http://" + at + "/v1")
	log.Fatal(http.ListenAndServe(at, handler(os.Args[1:])))
}

// handler knows the turn by the replies that a request has.
func handler(lines []string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		modelserver.Raw(`{"object":"list","data":[{"id":"by-hand","object":"model","max_model_len":32768}]}`)(w, modelserver.Request{})
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var req modelserver.Request
		err := json.NewDecoder(r.Body).Decode(&req.Body)
		if err == nil {
			err = json.Unmarshal(req.Body["messages"], &req.Messages)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		turn := 0
		for _, m := range req.Messages {
			if m.Role == "assistant" {
				turn++
			}
		}
		reply := modelserver.Turn("All was typed.", true)
		if turn < len(lines) {
			reply = modelserver.Turn(fmt.Sprintf("Line %d.", turn+1), false, lines[turn]+"\n")
		}
		modelserver.Say(reply)(w, req)
	})
	return mux
}
