{{- define "hexkv.labels" -}}
app.kubernetes.io/name: hexkv
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "hexkv.container" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{- define "hexkv.pod" -}}
fsGroup: 1000
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* The configuration of a node: what the values make, and node.config over it. */ -}}
{{- define "hexkv.config" -}}
{{- $tiers := list (dict "store" "memory") -}}
{{- $made := dict "gigabytes" .Values.node.memory.sizeGB "observe" (dict "address" "0.0.0.0:9464" "exposed" true) -}}
{{- if .Values.directory.enabled -}}
{{- $secret := required "directory.enabled needs secretName" .Values.secretName -}}
{{- $file := "/run/secrets/hexkv/secret" -}}
{{- $tiers = append $tiers (dict "store" "peers") -}}
{{- $_ := set $made "directory" (dict "adapter" "embedded" "settings" (dict "address" (printf "%s-directory:7171" .Release.Name) "secret_file" $file)) -}}
{{- $_ := set $made "peers" (dict "channel" "tcp" "settings" (dict "listen" "0.0.0.0:7272" "secret_file" $file)) -}}
{{- end -}}
{{- if .Values.node.disk.sizeGB -}}
{{- $tiers = append $tiers (dict "store" "disk" "budget" (printf "%dGB" (int .Values.node.disk.sizeGB)) "settings" (dict "root" "/var/lib/hexkv/kv")) -}}
{{- end -}}
{{- $_ := set $made "tiers" $tiers -}}
{{- toYaml (mergeOverwrite $made .Values.node.config) -}}
{{- end }}
